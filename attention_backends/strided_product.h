#ifndef ATTENTION_BACKENDS_STRIDED_PRODUCT_H_
#define ATTENTION_BACKENDS_STRIDED_PRODUCT_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "attention_backends/attention_backend.h"

// Matrix products of attention, by cuBLAS or the CPU's library. Operands may be
// slices of a fused projection: 4-dimensional tensors whose two leading
// dimensions count matrices, row- or column-major.

namespace tessera {

// `x` if a few products can read it in place, otherwise a copy with its
// matrices one after the other, each row- or column-major as before.
at::Tensor AsOperand(const at::Tensor& x);
// Whether products can write `out` in place; otherwise they are copied into it.
bool IsTarget(const at::Tensor& out);

// out = alpha a b for the matrices of one launch: [N, ., .].
using BatchedProduct =
    absl::FunctionRef<void(const at::Tensor& a, const at::Tensor& b,
                           double alpha, const at::Tensor& out)>;
// LibTorch's batched product.
void MultiplyBatch(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out);

// out = alpha a b.
void Multiply(const at::Tensor& a, const at::Tensor& b, double alpha,
              const at::Tensor& out, BatchedProduct batch = MultiplyBatch);

// out = alpha a b, where `out` has query heads, [B, H, S, D], and the rows of a
// are those of a group's heads, stacked: [B, G, H/G S, .].
void MultiplyIntoHeads(const at::Tensor& a, const at::Tensor& b, double alpha,
                       const at::Tensor& out,
                       BatchedProduct batch = MultiplyBatch);

// [B, H, S, D] as [B, G, H/G S, D]: a view if H = G, otherwise usually a copy.
at::Tensor GroupHeads(const at::Tensor& x_bhsd, int64_t kv_heads);

// The number of matrices that one launch multiplies if its operands are
// [B, heads, ., .] slices of a fused projection.
int64_t MatricesPerLaunch(int64_t b, int64_t heads);

// Bytes that one product copies if Q, K and V are slices of a fused projection:
// an operand or result of query heads, and one of key heads.
int64_t ProductCopyBytes(const AttentionProblem& problem);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_STRIDED_PRODUCT_H_
