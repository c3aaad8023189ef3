#ifndef FRAMEWORK_DIST_RUN_STORE_H_
#define FRAMEWORK_DIST_RUN_STORE_H_

#include <functional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/key_value_table.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Sends one request to a KeyValueTable, with a timeout. Thread-safe.
using StoreCall =
    std::function<absl::StatusOr<Fields>(const Fields&, absl::Duration)>;

// The c10d store over `call`. Throws c10::DistNetworkError if a request fails,
// and c10::DistStoreError if a key is not set within the store's timeout. Any
// number of threads may wait at the same time.
c10::intrusive_ptr<c10d::Store> MakeRunStore(StoreCall call);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_RUN_STORE_H_
