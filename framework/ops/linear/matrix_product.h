#ifndef FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_
#define FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"

namespace tessera {

// c = a b, or c += a b, rounded once to c's dtype, or twice where the sum is
// computed in two parts, of which the first is a few terms. a: [m, k] and b:
// [k, n] of one dtype; c: [m, n]. `tuned`: by the fastest algorithm
// (cublas_lt_product.h), on a GPU.
void Multiply(const at::Tensor& a, const at::Tensor& b, bool accumulate,
              bool tuned, at::Tensor c);

// Chooses the algorithms of Multiply(a, b, accumulate, /*tuned=*/true, c), for
// either value of `accumulate`, unless that has been done; may overwrite c. For
// products that accumulate from the first call on, which cannot be tuned then.
void TuneMultiply(const at::Tensor& a, const at::Tensor& b, at::Tensor c);

// Whether Multiply() gives cuBLASLt the products of `operands` on a GPU,
// instead of cuBLAS, through LibTorch. cuBLAS has kernels for FP32 without
// tensor cores that cuBLASLt does not propose: with cuBLASLt's fastest a step
// of the small model at 128 tokens takes 16.3 ms on an H200, with cuBLAS 12.9.
inline bool UsesCublasLt(at::ScalarType operands, bool allows_tf32) {
  return operands == at::kHalf || operands == at::kBFloat16 ||
         (operands == at::kFloat && allows_tf32);
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_
