#ifndef FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_
#define FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "framework/ops/linear/product_choices.h"

namespace tessera {

// out = alpha a b, or out += alpha a b, by cuBLASLt. Enqueues nothing and
// returns false for products that cuBLASLt does not support.
//   a: [M, K] or [N, M, K] and b: [K, C] or [N, K, C], of one dtype: FP32, BF16
//   or FP16, row- or column-major
//   out: [M, C] or [N, M, C], row-major, in their dtype or in FP32
// Sums are FP32; FP32 operands are rounded to TF32 if LibTorch's products may
// do so.
bool MultiplyByCublasLt(const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& out, const ProductOptions& options,
                        double alpha = 1);

// ChooseProducts() on a GPU.
ProductChoices ChooseByCublasLt(absl::Span<const MatrixProduct> products,
                                const ProductChoiceOptions& options);

// Both are defined only in CUDA builds (framework/cuda/cuda_build.h).

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_
