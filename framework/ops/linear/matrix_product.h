#ifndef FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_
#define FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_

#include "ATen/core/Tensor.h"

namespace tessera {

// c = a b, or c += a b, rounded once to c's dtype, or twice where the sum is
// computed in two parts, of which the first is a few terms. a: [m, k] and b:
// [k, n] of one dtype; c: [m, n]. `tuned`: by the fastest algorithm
// (cublas_lt_product.h), on a GPU; FP32 without TF32 goes to LibTorch.
void Multiply(const at::Tensor& a, const at::Tensor& b, bool accumulate,
              bool tuned, at::Tensor c);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_
