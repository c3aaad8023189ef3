#include "framework/program/value.h"

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {

int64_t TensorType::numel() const {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

int64_t TensorType::bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

at::Tensor WithoutMemory(const TensorType& type) {
  return at::empty(type.shape, at::dtype(type.dtype).device(at::kMeta));
}

absl::string_view DtypeName(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "FP64";
    case at::kFloat:
      return "FP32";
    case at::kHalf:
      return "FP16";
    case at::kBFloat16:
      return "BF16";
    case at::kLong:
      return "INT64";
    default:
      return c10::toString(dtype);
  }
}

std::string ToString(const TensorType& type) {
  return absl::StrCat(DtypeName(type.dtype), " [",
                      absl::StrJoin(type.shape, ", "), "]");
}

}  // namespace tessera
