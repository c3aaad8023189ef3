#ifndef ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_
#define ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "attention_backends/attention_backend.h"

// Shared by the bindings of LibTorch's attention kernels: the limits of these
// kernels, and the conversion of their results to ours.

namespace tessera {

// The Require functions return OK, or Unimplemented with what to change.

// Requires a GPU of compute capability 8.0 or newer.
absl::Status RequireAmpere(const AttentionProblem& problem);
// Limits sequences and heads, which are a grid's y and z in all of these
// kernels.
absl::Status RequireBatchOfOneGrid(const AttentionProblem& problem);
// Limits training with kernels that index their FP32 sums of dQ, with rows
// padded to a multiple of 128 and head dims to `padded_d`, by 32 bits: beyond
// the limit FlashAttention-2 faults and cuDNN returns a wrong dQ.
absl::Status RequireSmallSums(const AttentionProblem& problem,
                              int64_t padded_d);
// For kernels whose L is not -infinity for queries without a key.
absl::Status RequireKeyForEveryQuery(const AttentionProblem& problem);
absl::Status RequireNoDeterminism(const AttentionProblem& problem);

// Bytes of O or dQ, and of dK or dV with `heads` heads.
int64_t QueryBytes(const AttentionProblem& problem);
int64_t KeyBytes(const AttentionProblem& problem, int64_t heads);
// Bytes of one FP32 number per query and head.
int64_t StatisticBytes(const AttentionProblem& problem);

// The memory of a kernel that saves O and L and, in backward, allocates its
// gradients and `sums` more bytes.
AttentionMemory PlanWithSums(const AttentionProblem& problem, int64_t sums);

bool IsCausal(const AttentionArgs& args);

// [B, heads, S, D] <-> [B, S, heads, D], a view.
at::Tensor SwapHeadsAndRows(const at::Tensor& x);

// Copies the gradients that a kernel allocated, [B, S, heads, D], into the
// slices that the caller wants. dK and dV of query heads are summed over each
// group. An undefined slice is replaced by the kernel's own tensor, for
// benchmarks that compare kernels without the copies.
void CopyGradients(const at::Tensor& dq_bshd, const at::Tensor& dk_bthd,
                   const at::Tensor& dv_bthd, AttentionGrads* grads);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_
