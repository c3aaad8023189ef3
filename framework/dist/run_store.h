#ifndef FRAMEWORK_DIST_RUN_STORE_H_
#define FRAMEWORK_DIST_RUN_STORE_H_

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/key_value_table.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Answers one request to a KeyValueTable, within a time. Thread-safe.
using StoreCall =
    std::function<absl::StatusOr<Fields>(const Fields&, absl::Duration)>;

// The c10d store over `call`: throws c10::DistNetworkError if a request fails,
// c10::DistStoreError if a key is not set within the store's timeout. Any
// number of threads may wait at one time.
c10::intrusive_ptr<c10d::Store> MakeRunStore(StoreCall call);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RUN_STORE_H_
