#include "attention_backends/naive/naive_backend.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/strided_product.h"
#include "framework/base/phase_observer.h"
#include "framework/base/torch_status.h"
#include "framework/params/activation_arena.h"

namespace tessera {
namespace {

// Query rows masked at a time. Filling what none of them sees only writes;
// with 512 rows the mask of 2048 (4096) queries took 0.6 (0.5) of the time of
// one masked_fill_ over all scores (H200, BF16, 2026-11).
constexpr int64_t kMaskRows = 512;

at::ScalarType StatisticsType(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Queries before the first that sees a key.
int64_t BlindRows(const AttentionArgs& args) {
  return args.mask == MaskKind::kFull
             ? 0
             : std::max<int64_t>(0, args.q_bhsd.size(2) - args.k_bgtd.size(2));
}

// Adds M in place. Blind rows become -infinity throughout.
void ApplyMask(const AttentionArgs& args, const at::Tensor& s_bhst) {
  if (args.mask == MaskKind::kFull) return;
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  const int64_t s = s_bhst.size(2), t = s_bhst.size(3);
  const int64_t mask_rows = std::min(s, kMaskRows);
  const at::Tensor future =
      at::ones({mask_rows, mask_rows}, s_bhst.options().dtype(at::kBool))
          .triu_(1);
  for (int64_t begin = 0; begin < s; begin += kMaskRows) {
    const int64_t end = std::min(begin + kMaskRows, s);
    const at::Tensor rows = s_bhst.narrow(2, begin, end - begin);
    // Row i sees keys up to i + t - s: all rows those before `some`, some rows
    // those from there to `none`, no row those behind.
    const int64_t diagonal = begin + t - s;
    const int64_t some = std::max<int64_t>(0, diagonal);
    const int64_t none = std::max<int64_t>(0, end + t - s);
    if (none < t) rows.narrow(3, none, t - none).fill_(kMasked);
    if (some == none) continue;
    rows.narrow(3, some, none - some)
        .masked_fill_(future.narrow(0, 0, end - begin)
                          .narrow(1, some - diagonal, none - some),
                      kMasked);
  }
}

// P = softmax(S), in S's place: a row is read before it is written.
void SoftmaxInPlace(int64_t blind_rows, const at::Tensor& s_bhst) {
  at::Tensor p = s_bhst;
  at::_softmax_out(p, s_bhst, /*dim=*/-1, /*half_to_float=*/false);
  if (blind_rows > 0) p.narrow(2, 0, blind_rows).zero_();
}

// 2 dS = 2 P o (dP - rowsum(dO o O)), in dP's place, by the one operation of
// ATen that reads each n^2 operand once and takes the row sums broadcast: the
// gradient of a squared difference, P * 2 (dP - rowsum). ATen's own backward
// of softmax would hold P o dP as a third n^2 tensor.
void SoftmaxBackwardInPlace(const at::Tensor& p, const at::Tensor& rowsum,
                            const at::Tensor& d_p) {
  at::Tensor d_s = d_p;
  at::mse_loss_backward_out(d_s, p, d_p, rowsum.to(p.scalar_type()),
                            at::Reduction::None);
}

// rowsum(dO o O), [B, H, S, 1], in FP32 (FP64).
at::Tensor RowSum(const at::Tensor& d_o_bhsd, const at::Tensor& o_bhsd) {
  return (d_o_bhsd.to(StatisticsType(o_bhsd.scalar_type())) * o_bhsd)
      .sum(-1, /*keepdim=*/true);
}

}  // namespace

absl::Status NaiveBackend::Supports(const AttentionProblem& problem) const {
  switch (problem.dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("computes in Float, Double, BFloat16 or Half, not in ",
                       c10::toString(problem.dtype), ": change precision"));
  }
}

AttentionMemory NaiveBackend::Plan(const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  const int64_t element = c10::elementSize(p.dtype);
  const int64_t statistic = c10::elementSize(StatisticsType(p.dtype));
  const int64_t scores = p.b * p.h * p.s * p.t * element;
  const int64_t q = p.b * p.h * p.s * p.d * element;
  const int64_t mask_rows =
      p.mask == MaskKind::kCausal ? std::min(p.s, kMaskRows) : 0;
  const bool groups = p.h != p.g;
  const int64_t copies = ProductCopyBytes(p);
  // dO in the statistics' dtype, where that is another, and dO o O.
  const int64_t rowsum =
      q / element * statistic * (statistic > element ? 2 : 1);
  AttentionMemory memory;
  memory.forward_bytes = std::max(copies, mask_rows * mask_rows);
  if (!p.needs_grad) {
    memory.forward_bytes += scores;
    return memory;
  }
  memory.saved_bytes = scores + q;
  memory.backward_bytes = scores + (groups ? q : 0) + std::max(copies, rowsum);
  return memory;
}

absl::Status NaiveBackend::Forward(const AttentionArgs& args,
                                   AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor& q = args.q_bhsd;
    const int64_t b = q.size(0), h = q.size(1), s = q.size(2), d = q.size(3);
    const int64_t g = args.k_bgtd.size(1), t = args.k_bgtd.size(2);
    const at::Tensor p = EmptyActivation({b, g, h / g * s, t}, q.options());
    const at::Tensor p_bhst = p.view({b, h, s, t});
    {
      const PhaseScope phase(args.phases, "scores");
      Multiply(GroupHeads(q, g), args.k_bgtd.transpose(2, 3), args.scale, p);
      ApplyMask(args, p_bhst);
    }
    if (args.wants_lse) {
      out->lse_bhs = p_bhst.to(StatisticsType(q.scalar_type())).logsumexp(-1);
    }
    {
      const PhaseScope phase(args.phases, "softmax");
      SoftmaxInPlace(BlindRows(args), p_bhst);
    }
    const PhaseScope phase(args.phases, "values");
    out->o_bhsd = EmptyActivation({b, s, h, d}, q.options()).transpose(1, 2);
    MultiplyIntoHeads(p, args.v_bgtd, 1, out->o_bhsd);
    out->saved = {p};
  });
}

absl::Status NaiveBackend::Backward(const AttentionArgs& args,
                                    const AttentionOut& out,
                                    const at::Tensor& d_o_bhsd,
                                    AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const int64_t g = args.k_bgtd.size(1);
    const at::Tensor& p = out.saved[0];
    const at::Tensor d_o = GroupHeads(d_o_bhsd, g);
    Multiply(p.transpose(2, 3), d_o, 1, grads->dv_bgtd);
    const at::Tensor d_s = at::empty_like(p);
    Multiply(d_o, args.v_bgtd.transpose(2, 3), 1, d_s);
    SoftmaxBackwardInPlace(p, GroupHeads(RowSum(d_o_bhsd, out.o_bhsd), g), d_s);
    const double half_scale = args.scale / 2;  // d_s holds 2 dS
    MultiplyIntoHeads(d_s, args.k_bgtd, half_scale, grads->dq_bhsd);
    Multiply(d_s.transpose(2, 3), GroupHeads(args.q_bhsd, g), half_scale,
             grads->dk_bgtd);
  });
}

}  // namespace tessera
