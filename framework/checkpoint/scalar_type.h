#ifndef FRAMEWORK_CHECKPOINT_SCALAR_TYPE_H_
#define FRAMEWORK_CHECKPOINT_SCALAR_TYPE_H_

#include <optional>

#include "c10/core/ScalarType.h"
#include "framework/checkpoint/safetensors_header.h"

namespace tessera {

// LibTorch's dtype for one that weights are stored in; nullopt for dtypes that
// weights never have.
std::optional<at::ScalarType> ScalarTypeOf(StoredDtype dtype);

// The inverse of ScalarTypeOf().
StoredDtype StoredDtypeOf(at::ScalarType dtype);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_SCALAR_TYPE_H_
