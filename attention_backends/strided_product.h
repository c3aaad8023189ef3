#ifndef ATTENTION_BACKENDS_STRIDED_PRODUCT_H_
#define ATTENTION_BACKENDS_STRIDED_PRODUCT_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "attention_backends/attention_backend.h"

// Products of attention by cuBLAS (or what the CPU has) whose operands are
// slices of a fused projection: 4-dimensional, the two leading dimensions
// counting matrices, row- or column-major.

namespace tessera {

// `x` if a few products can take it as it is; else a copy with its matrices
// back to back, each row- or column-major as it was.
at::Tensor AsOperand(const at::Tensor& x);
// Whether products can write `out` as it is; if not, they are copied into it.
bool IsTarget(const at::Tensor& out);

// out = alpha a b for the matrices of one launch: [N, ., .].
using BatchedProduct =
    absl::FunctionRef<void(const at::Tensor& a, const at::Tensor& b,
                           double alpha, const at::Tensor& out)>;
// LibTorch's.
void MultiplyBatch(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out);

// out = alpha a b.
void Multiply(const at::Tensor& a, const at::Tensor& b, double alpha,
              const at::Tensor& out, BatchedProduct batch = MultiplyBatch);

// The same with an `out` of query heads, [B, H, S, D], where a and b have the
// rows of a group below each other: [B, G, H/G S, .].
void MultiplyIntoHeads(const at::Tensor& a, const at::Tensor& b, double alpha,
                       const at::Tensor& out,
                       BatchedProduct batch = MultiplyBatch);

// [B, H, S, D] as [B, G, H/G S, D]: a view when H = G, else mostly a copy.
at::Tensor GroupHeads(const at::Tensor& x_bhsd, int64_t kv_heads);

// Matrices, of [B, heads, ., .] slices of a fused projection, that one launch
// multiplies.
int64_t MatricesPerLaunch(int64_t b, int64_t heads);

// Bytes of the copies that one product makes of Q, K and V that are slices of
// a fused projection: an operand or result of query heads, and one of key
// heads.
int64_t ProductCopyBytes(const AttentionProblem& problem);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_STRIDED_PRODUCT_H_
