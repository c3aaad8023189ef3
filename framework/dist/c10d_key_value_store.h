#ifndef FRAMEWORK_DIST_C10D_KEY_VALUE_STORE_H_
#define FRAMEWORK_DIST_C10D_KEY_VALUE_STORE_H_

#include <memory>

#include "framework/dist/key_value_store.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace tessera {

// Sends requests to `store`.
std::unique_ptr<KeyValueStore> MakeKeyValueStore(
    c10::intrusive_ptr<c10d::Store> store);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_C10D_KEY_VALUE_STORE_H_
