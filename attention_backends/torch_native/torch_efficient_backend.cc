#include "attention_backends/torch_native/torch_efficient_backend.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "ATen/native/transformers/sdp_utils_cpp.h"
#include "attention_backends/head_dim.h"
#include "attention_backends/torch_native/kernel_limits.h"
#include "framework/base/round_up.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr int64_t kLoadBytes = 16;  // per aligned load of a head's row
constexpr int64_t kLseRows = 32;    // L's rows are padded to a multiple

bool IsHalfPrecision(const AttentionProblem& problem) {
  return problem.dtype != at::kFloat;
}

int64_t MaskType(const AttentionArgs& args) {
  return static_cast<int64_t>(IsCausal(args)
                                  ? sdp::CustomMaskType::CausalFromBottomRight
                                  : sdp::CustomMaskType::NoCustomMask);
}

// [B, G, T, D] as [B, T, H, D]: a copy if H > G > 1, else a view, whose head
// stride is 0 for a single key head.
at::Tensor RepeatHeads(const at::Tensor& x_bgtd, int64_t query_heads) {
  const at::Tensor x_btgd = SwapHeadsAndRows(x_bgtd);
  const int64_t kv_heads = x_btgd.size(2);
  if (query_heads == kv_heads) return x_btgd;
  return x_btgd.unsqueeze(3)
      .expand({-1, -1, -1, query_heads / kv_heads, -1})
      .flatten(2, 3);
}

// Bytes of the kernel's temporaries. Per head: the sums of dQ, in tiles of
// `rows` queries and `keys` keys; if a head's row does not fit in the
// registers, also the sums of dK and dV, for each part into which the keys are
// split.
int64_t WorkspaceBytes(const AttentionProblem& p) {
  const bool half = IsHalfPrecision(p);
  const int64_t rows = p.d <= 64 ? 64 : 128;
  const int64_t keys = half && p.d > 64 && p.d <= 128 ? 128 : 64;
  const int64_t heads = p.b * p.h;
  constexpr int64_t kLockBytes = 16;  // before each tile of dQ
  int64_t per_head =
      RoundUp(p.s, rows) / rows * (RoundUp(p.d, keys) / keys) *
      (kLockBytes + rows * keys * static_cast<int64_t>(sizeof(float)));
  if (half && p.d > 128) {
    const int64_t most = std::min(RoundUp(p.t, keys) / keys, 200 / heads);
    const int64_t splits = p.deterministic ? 1 : std::max<int64_t>(1, most);
    per_head += 2 * splits * keys * RoundUp(p.d, rows) *
                static_cast<int64_t>(sizeof(float));
  }
  return heads * per_head;
}

}  // namespace

absl::Status TorchEfficientBackend::Supports(
    const AttentionProblem& problem) const {
  RETURN_IF_ERROR(RequireAmpere(problem));
  RETURN_IF_ERROR(RequirePlain(problem));
  RETURN_IF_ERROR(RequireDtype(problem, kDtypes));
  // The kernels support larger head dims, but Plan() does not.
  RETURN_IF_ERROR(RequireHeadDim(
      problem, kLoadBytes / c10::elementSize(problem.dtype), kMaxHeadDim));
  RETURN_IF_ERROR(RequireBatchOfOneGrid(problem));
  return RequireKeyForEveryQuery(problem);
}

AttentionMemory TorchEfficientBackend::Plan(
    const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  const int64_t wide_q = StatisticBytes(p) * p.d;
  const int64_t lse = StatisticBytes(p) / p.s * RoundUp(p.s, kLseRows);
  const bool copies = p.h != p.g && p.g > 1;
  const int64_t repeated = copies ? 2 * KeyBytes(p, p.h) : 0;
  // O in FP32, if it does not fit in the registers.
  const int64_t sums = IsHalfPrecision(p) && p.d > 128 ? wide_q : 0;
  AttentionMemory memory{.allocates = true};
  memory.forward_bytes = repeated + sums;
  if (!p.needs_grad) {
    memory.forward_bytes += lse;
    return memory;
  }
  // L, and the random state of the unused dropout.
  memory.saved = {{{p.b, p.h, RoundUp(p.s, kLseRows)}, at::kFloat},
                  {{}, at::kLong},
                  {{}, at::kLong}};
  memory.saved_bytes = QueryBytes(p) + lse;
  // rowsum(dO o O): by the kernel in half precision, by ATen in FP32.
  const int64_t row_sums = IsHalfPrecision(p) ? 0 : wide_q + StatisticBytes(p);
  memory.backward_bytes = repeated + QueryBytes(p) + 2 * KeyBytes(p, p.h) +
                          StatisticBytes(p) +
                          std::max(row_sums, WorkspaceBytes(p));
  return memory;
}

absl::Status TorchEfficientBackend::Forward(const AttentionArgs& args,
                                            AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const int64_t h = args.q_bhsd.size(1), s = args.q_bhsd.size(2);
    const auto results = at::_efficient_attention_forward(
        SwapHeadsAndRows(args.q_bhsd), RepeatHeads(args.k_bgtd, h),
        RepeatHeads(args.v_bgtd, h), /*bias=*/std::nullopt,
        /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt,
        /*max_seqlen_q=*/std::nullopt, /*max_seqlen_k=*/std::nullopt,
        /*dropout_p=*/0, MaskType(args), /*compute_log_sumexp=*/true,
        args.scale);
    const at::Tensor &lse = std::get<1>(results), &seed = std::get<2>(results),
                     &offset = std::get<3>(results);
    out->o_bhsd = SwapHeadsAndRows(std::get<0>(results));
    out->lse_bhs = lse.narrow(2, 0, s);
    out->saved = {lse, seed, offset};
  });
}

absl::Status TorchEfficientBackend::Backward(const AttentionArgs& args,
                                             const AttentionOut& out,
                                             const at::Tensor& d_o_bhsd,
                                             AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const int64_t h = args.q_bhsd.size(1);
    const std::optional<int64_t> num_splits_key =
        args.deterministic ? std::optional<int64_t>(1) : std::nullopt;
    at::Tensor dq, dk, dv;
    std::tie(dq, dk, dv, std::ignore) = at::_efficient_attention_backward(
        SwapHeadsAndRows(d_o_bhsd), SwapHeadsAndRows(args.q_bhsd),
        RepeatHeads(args.k_bgtd, h), RepeatHeads(args.v_bgtd, h),
        /*bias=*/std::nullopt, SwapHeadsAndRows(out.o_bhsd),
        /*cu_seqlens_q=*/std::nullopt, /*cu_seqlens_k=*/std::nullopt,
        /*max_seqlen_q=*/args.q_bhsd.size(2),
        /*max_seqlen_k=*/args.k_bgtd.size(2), /*logsumexp=*/out.saved[0],
        /*dropout_p=*/0, /*philox_seed=*/out.saved[1],
        /*philox_offset=*/out.saved[2], MaskType(args),
        /*bias_requires_grad=*/false, args.scale, num_splits_key);
    CopyGradients(dq, dk, dv, grads);
  });
}

}  // namespace tessera
