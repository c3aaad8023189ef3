#include "framework/checkpoint/scalar_type.h"

#include "framework/base/check.h"

namespace tessera {

std::optional<at::ScalarType> ScalarTypeOf(StoredDtype dtype) {
  switch (dtype) {
    case StoredDtype::kF32:
      return at::kFloat;
    case StoredDtype::kBF16:
      return at::kBFloat16;
    case StoredDtype::kF16:
      return at::kHalf;
    case StoredDtype::kF64:
      return at::kDouble;
    default:
      return std::nullopt;
  }
}

StoredDtype StoredDtypeOf(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return StoredDtype::kF32;
    case at::kBFloat16:
      return StoredDtype::kBF16;
    case at::kHalf:
      return StoredDtype::kF16;
    default:
      TESSERA_CHECK(dtype == at::kDouble);
      return StoredDtype::kF64;
  }
}

}  // namespace tessera
