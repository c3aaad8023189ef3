#include "attention_backends/torch_native/torch_flash_backend.h"

#include <cstdint>
#include <optional>
#include <tuple>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/torch_native/kernel_limits.h"
#include "framework/base/round_up.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kBFloat16, at::kHalf};
constexpr int64_t kTorchFlashHeadDimStep = 8, kTorchFlashMaxHeadDim = 256;

// The head dim of the kernels that run a problem.
int64_t PaddedHeadDim(const AttentionProblem& problem) {
  return RoundUp(problem.d, problem.d <= 128 ? 32 : 64);
}

// The backward kernel of head dims 200..224 needs the shared memory of an A100
// or H100.
absl::Status RequireSharedMemory(const AttentionProblem& problem) {
  const int capability = problem.compute_capability;
  const bool large = capability == 80 || capability == 90;
  if (!problem.needs_grad || large || problem.d <= 192 || problem.d > 224) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "needs compute capability 8.0 or 9.0 to train with head dim ", problem.d,
      ": change the number of heads"));
}

}  // namespace

absl::Status TorchFlashBackend::Supports(
    const AttentionProblem& problem) const {
  RETURN_IF_ERROR(RequireAmpere(problem));
  RETURN_IF_ERROR(RequirePlain(problem));
  RETURN_IF_ERROR(RequireDtype(problem, kDtypes));
  RETURN_IF_ERROR(
      RequireHeadDim(problem, kTorchFlashHeadDimStep, kTorchFlashMaxHeadDim));
  RETURN_IF_ERROR(RequireBatchOfOneGrid(problem));
  RETURN_IF_ERROR(RequireSmallSums(problem, PaddedHeadDim(problem)));
  RETURN_IF_ERROR(RequireSharedMemory(problem));
  RETURN_IF_ERROR(RequireKeyForEveryQuery(problem));
  return RequireNoDeterminism(problem);
}

AttentionMemory TorchFlashBackend::Plan(const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  // dQ and rowsum(dO o O) in FP32, with rows padded to a multiple of 128 and
  // head dims to those of the kernels.
  const int64_t padded_rows = RoundUp(p.s, 128);
  const int64_t sums = p.b * p.h * padded_rows * (PaddedHeadDim(p) + 1) *
                       static_cast<int64_t>(sizeof(float));
  AttentionMemory memory = PlanWithSums(p, sums);
  if (!p.needs_grad) return memory;
  memory.lse = TensorType{{p.b, p.h, p.s}, at::kFloat};
  // The random state of the unused dropout.
  memory.saved = {{{2}, at::kUInt64}, {{}, at::kUInt64}};
  return memory;
}

absl::Status TorchFlashBackend::Forward(const AttentionArgs& args,
                                        AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    at::Tensor o, lse, rng_state, unused;
    std::tie(o, lse, rng_state, unused, std::ignore) =
        at::_flash_attention_forward(
            SwapHeadsAndRows(args.q_bhsd), SwapHeadsAndRows(args.k_bgtd),
            SwapHeadsAndRows(args.v_bgtd), /*cum_seq_q=*/std::nullopt,
            /*cum_seq_k=*/std::nullopt, args.q_bhsd.size(2),
            args.k_bgtd.size(2), /*dropout_p=*/0, IsCausal(args),
            /*return_debug_mask=*/false, args.scale);
    out->o_bhsd = SwapHeadsAndRows(o);
    out->lse_bhs = lse;
    out->saved = {rng_state, unused};
  });
}

absl::Status TorchFlashBackend::Backward(const AttentionArgs& args,
                                         const AttentionOut& out,
                                         const at::Tensor& d_o_bhsd,
                                         AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        SwapHeadsAndRows(d_o_bhsd), SwapHeadsAndRows(args.q_bhsd),
        SwapHeadsAndRows(args.k_bgtd), SwapHeadsAndRows(args.v_bgtd),
        SwapHeadsAndRows(out.o_bhsd), out.lse_bhs, /*cum_seq_q=*/at::Tensor(),
        /*cum_seq_k=*/at::Tensor(), args.q_bhsd.size(2), args.k_bgtd.size(2),
        /*dropout_p=*/0, IsCausal(args), /*rng_state=*/out.saved[0],
        /*unused=*/out.saved[1], args.scale);
    CopyGradients(dq, dk, dv, grads);
  });
}

}  // namespace tessera
