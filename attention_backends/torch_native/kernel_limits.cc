#include "attention_backends/torch_native/kernel_limits.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "framework/base/round_up.h"

namespace tessera {
namespace {

// The limit of a grid's y and z dimensions (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability").
constexpr int64_t kMaxGridRows = 65535;

void CopyOrSumGroups(const at::Tensor& x_bthd, at::Tensor& target_bgtd) {
  if (!target_bgtd.defined()) {
    target_bgtd = SwapHeadsAndRows(x_bthd);
    return;
  }
  at::Tensor target = SwapHeadsAndRows(target_bgtd);
  const int64_t heads = x_bthd.size(2), kv_heads = target.size(2);
  if (heads == kv_heads) {
    target.copy_(x_bthd);
    return;
  }
  at::sum_out(target, x_bthd.unflatten(2, {kv_heads, heads / kv_heads}),
              at::IntArrayRef{3});
}

}  // namespace

absl::Status RequireAmpere(const AttentionProblem& problem) {
  if (!problem.cuda) {
    return absl::UnimplementedError(
        "runs only on CUDA GPUs: use COMPILED_FUSED or NAIVE on a CPU");
  }
  return RequireCapability(problem, 80);
}

absl::Status RequireBatchOfOneGrid(const AttentionProblem& problem) {
  if (std::max(problem.b, problem.h) <= kMaxGridRows) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "supports at most ", kMaxGridRows, " sequences and as many heads, not ",
      problem.b, " and ", problem.h, ": use smaller batches"));
}

absl::Status RequireSmallSums(const AttentionProblem& problem,
                              int64_t padded_d) {
  constexpr int64_t kMaxElements = int64_t{1} << 31;
  const int64_t elements =
      problem.b * problem.h * RoundUp(problem.s, 128) * padded_d;
  if (!problem.needs_grad || elements <= kMaxElements) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("supports at most ", kMaxElements,
                   " elements of dQ in training, with rows padded to a multiple"
                   " of 128 and the head dim to ",
                   padded_d, ", not ", elements, ": use smaller batches"));
}

absl::Status RequireKeyForEveryQuery(const AttentionProblem& problem) {
  if (problem.mask != MaskSpec::Causal() || problem.s <= problem.t) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "needs a key for every query; under a causal mask, some of ", problem.s,
      " queries over ", problem.t, " keys see none: use NAIVE"));
}

absl::Status RequireNoDeterminism(const AttentionProblem& problem) {
  if (!problem.deterministic || !problem.needs_grad) return absl::OkStatus();
  return absl::UnimplementedError(
      "sums dQ in no fixed order: set deterministic: false");
}

int64_t QueryBytes(const AttentionProblem& p) {
  return p.b * p.h * p.s * p.d * c10::elementSize(p.dtype);
}

int64_t KeyBytes(const AttentionProblem& p, int64_t heads) {
  return p.b * heads * p.t * p.d * c10::elementSize(p.dtype);
}

int64_t StatisticBytes(const AttentionProblem& p) {
  return p.b * p.h * p.s * static_cast<int64_t>(sizeof(float));
}

AttentionMemory PlanWithSums(const AttentionProblem& problem, int64_t sums) {
  const AttentionProblem& p = problem;
  AttentionMemory memory{.allocates = true};
  if (!p.needs_grad) {
    memory.forward_bytes = StatisticBytes(p);
    return memory;
  }
  memory.saved_bytes = QueryBytes(p) + StatisticBytes(p);
  // With grouped heads these kernels compute dK and dV of every query head.
  const int64_t ungrouped = p.h == p.g ? 0 : 2 * KeyBytes(p, p.h);
  memory.backward_bytes =
      QueryBytes(p) + 2 * KeyBytes(p, p.g) + sums + ungrouped;
  return memory;
}

bool IsCausal(const AttentionArgs& args) {
  return args.mask == MaskSpec::Causal();
}

at::Tensor SwapHeadsAndRows(const at::Tensor& x) { return x.transpose(1, 2); }

void CopyGradients(const at::Tensor& dq_bshd, const at::Tensor& dk_bthd,
                   const at::Tensor& dv_bthd, AttentionGrads* grads) {
  CopyOrSumGroups(dq_bshd, grads->dq_bhsd);
  CopyOrSumGroups(dk_bthd, grads->dk_bgtd);
  CopyOrSumGroups(dv_bthd, grads->dv_bgtd);
}

}  // namespace tessera
