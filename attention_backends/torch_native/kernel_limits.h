#ifndef ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_
#define ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"

// What the bindings of LibTorch's attention kernels have in common: the limits
// that those kernels share, and the way from their results to ours.

namespace tessera {

// OK, or Unimplemented with what to change.

// A GPU of compute capability 8.0 or newer.
absl::Status RequireAmpere(const AttentionProblem& problem);
absl::Status RequireDtype(const AttentionProblem& problem,
                          absl::Span<const at::ScalarType> supported);
absl::Status RequireHeadDim(const AttentionProblem& problem, int64_t multiple,
                            int64_t largest);
// Sequences and heads are a grid's y and z in all of these kernels.
absl::Status RequireBatchOfOneGrid(const AttentionProblem& problem);
// In training, of kernels that index their FP32 sums of dQ, rows padded to 128
// and head dims to `padded_d`, by 32 bits: FlashAttention-2 faults beyond,
// cuDNN gives another dQ.
absl::Status RequireSmallSums(const AttentionProblem& problem,
                              int64_t padded_d);
// The kernels give queries without a key another L than -infinity.
absl::Status RequireKeyForEveryQuery(const AttentionProblem& problem);
absl::Status RequireNoDeterminism(const AttentionProblem& problem);

// Bytes of O or dQ; of dK or dV, with `heads` of them.
int64_t QueryBytes(const AttentionProblem& problem);
int64_t KeyBytes(const AttentionProblem& problem, int64_t heads);
// Of one FP32 number per query and head.
int64_t StatisticBytes(const AttentionProblem& problem);

// Of a kernel that saves O and L and, in backward, allocates its gradients
// beside `sums` bytes of its own.
AttentionMemory PlanWithSums(const AttentionProblem& problem, int64_t sums);

bool IsCausal(const AttentionArgs& args);

int64_t RoundUp(int64_t value, int64_t multiple);

// [B, heads, S, D] <-> [B, S, heads, D], a view.
at::Tensor SwapHeadsAndRows(const at::Tensor& x);

// The gradients that a kernel allocated, as [B, S, heads, D], into the slices
// that the caller wants. dK and dV of query heads are summed over each group.
// Where a slice is undefined, the kernel's own tensor takes its place as it is:
// for a benchmark that compares kernels, of which others write slices.
void CopyGradients(const at::Tensor& dq_bshd, const at::Tensor& dk_bthd,
                   const at::Tensor& dv_bthd, AttentionGrads* grads);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_TORCH_NATIVE_KERNEL_LIMITS_H_
