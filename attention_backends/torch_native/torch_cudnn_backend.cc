#include "attention_backends/torch_native/torch_cudnn_backend.h"

#include <cstdint>
#include <optional>
#include <tuple>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/torch_native/kernel_limits.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kBFloat16, at::kHalf};
constexpr int64_t kCudnnHeadDimStep = 8, kCudnnMaxHeadDim = 128;

absl::Status RequireLengths(const AttentionProblem& problem) {
  const AttentionProblem& p = problem;
  if (p.mask == MaskSpec::Causal() && p.s != p.t) {
    return absl::UnimplementedError(absl::StrCat(
        "aligns a causal mask at the top left, so it needs as many queries as "
        "keys, not ",
        p.s, " and ", p.t, ": use FLASH_CUDA or NAIVE"));
  }
  if (p.t == 1) {
    return absl::UnimplementedError(
        "needs more than one key: use FLASH_CUDA or NAIVE");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TorchCudnnBackend::Supports(
    const AttentionProblem& problem) const {
  RETURN_IF_ERROR(RequireAmpere(problem));
  RETURN_IF_ERROR(RequirePlain(problem));
  RETURN_IF_ERROR(RequireDtype(problem, kDtypes));
  RETURN_IF_ERROR(RequireHeadDim(problem, kCudnnHeadDimStep, kCudnnMaxHeadDim));
  RETURN_IF_ERROR(RequireBatchOfOneGrid(problem));
  RETURN_IF_ERROR(RequireSmallSums(problem, problem.d));
  RETURN_IF_ERROR(RequireLengths(problem));
  return RequireNoDeterminism(problem);
}

AttentionMemory TorchCudnnBackend::Plan(const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  AttentionMemory memory = PlanWithSums(p, StatisticBytes(p) * (p.d + 1));
  if (!p.needs_grad) return memory;
  // L, and the random state of the unused dropout.
  memory.saved = {
      {{p.b, p.h, p.s, 1}, at::kFloat}, {{}, at::kLong}, {{}, at::kLong}};
  return memory;
}

absl::Status TorchCudnnBackend::Forward(const AttentionArgs& args,
                                        AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const auto results = at::_scaled_dot_product_cudnn_attention(
        args.q_bhsd, args.k_bgtd, args.v_bgtd, /*attn_bias=*/std::nullopt,
        /*compute_log_sumexp=*/true, /*dropout_p=*/0, IsCausal(args),
        /*return_debug_mask=*/false, args.scale);
    const at::Tensor &lse = std::get<1>(results), &seed = std::get<6>(results),
                     &offset = std::get<7>(results);
    out->o_bhsd = std::get<0>(results);
    out->lse_bhs = lse.view(args.q_bhsd.sizes().slice(0, 3));
    out->saved = {lse, seed, offset};
  });
}

absl::Status TorchCudnnBackend::Backward(const AttentionArgs& args,
                                         const AttentionOut& out,
                                         const at::Tensor& d_o_bhsd,
                                         AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor d_o =
        SwapHeadsAndRows(SwapHeadsAndRows(d_o_bhsd).contiguous());
    const at::Tensor none;
    const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        d_o, args.q_bhsd, args.k_bgtd, args.v_bgtd, out.o_bhsd,
        /*logsumexp=*/out.saved[0], /*philox_seed=*/out.saved[1],
        /*philox_offset=*/out.saved[2], /*attn_bias=*/none,
        /*cum_seq_q=*/none, /*cum_seq_k=*/none, args.q_bhsd.size(2),
        args.k_bgtd.size(2), /*dropout_p=*/0, IsCausal(args), args.scale);
    CopyGradients(SwapHeadsAndRows(dq), SwapHeadsAndRows(dk),
                  SwapHeadsAndRows(dv), grads);
  });
}

}  // namespace tessera
