#ifndef FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_
#define FRAMEWORK_OPS_LINEAR_MATRIX_PRODUCT_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "framework/ops/linear/product_choices.h"
#include "framework/program/value.h"

namespace tessera {

// c = a b, or c += a b, rounded once to c's dtype, or twice where the sum is
// computed in two parts, of which the first is a few terms. a: [m, k] and b:
// [k, n] of one dtype; c: [m, n].
void Multiply(const at::Tensor& a, const at::Tensor& b,
              const ProductOptions& options, at::Tensor c);

// Adds the products by which cuBLASLt computes `product` on a GPU, none if it
// does not. They are the same whether or not it accumulates.
void AddProducts(const MatrixProduct& product,
                 std::vector<MatrixProduct>* products);

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
