#ifndef FRAMEWORK_CUDA_FLOAT_TYPE_OF_H_
#define FRAMEWORK_CUDA_FLOAT_TYPE_OF_H_

#include "ATen/core/Tensor.h"
#include "framework/base/check.h"
#include "framework/cuda/float_type.h"

namespace tessera {

// Dies for a dtype other than FP32, FP16 and BF16; callers choose their kernels
// by dtype.
inline FloatType FloatTypeOf(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return FloatType::kBFloat16;
  if (dtype == at::kHalf) return FloatType::kHalf;
  TESSERA_CHECK(dtype == at::kFloat, "kernels do not support ",
                c10::toString(dtype));
  return FloatType::kFloat;
}
inline FloatType FloatTypeOf(const at::Tensor& t) {
  return FloatTypeOf(t.scalar_type());
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_FLOAT_TYPE_OF_H_
