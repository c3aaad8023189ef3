#include "attention_backends/naive/naive_backend.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/grad_mode.h"
#include "attention_backends/document_bounds.h"
#include "attention_backends/key_range.h"
#include "attention_backends/naive/score_softmax.h"
#include "attention_backends/strided_product.h"
#include "framework/base/phase_observer.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

// Query rows that are masked at a time. Filling the keys that none of these
// rows sees needs no reads: with 512 rows, masking 2048 (4096) queries took 0.6
// (0.5) of the time of one masked_fill_ over all scores (H200, BF16, 2026-11).
constexpr int64_t kMaskRows = 512;

// Number of queries before the first one that sees a key.
int64_t BlindRows(const AttentionArgs& args) {
  return MaskOf(ProblemOf(args)).Queries(/*key=*/0).begin;
}

constexpr double kMasked = -std::numeric_limits<double>::infinity();

// Hides the keys after those that a row sees. future[r][c] is c > r.
void HideLater(const AttentionMask<int64_t>& mask, QueryRange<int64_t> queries,
               const at::Tensor& future, const at::Tensor& rows) {
  // All rows see the keys before `some`, some rows see the keys from `some` to
  // `none`, and no row sees the keys from `none` on. The last key that the
  // first row sees is `diagonal`; each row sees one key more than the row
  // before it.
  const int64_t diagonal = mask.Keys(queries.begin).end - 1;
  const int64_t some = std::max<int64_t>(0, diagonal);
  const int64_t none = mask.Keys(queries).end;
  if (none < mask.t) rows.narrow(3, none, mask.t - none).fill_(kMasked);
  if (some >= none) return;
  rows.narrow(3, some, none - some)
      .masked_fill_(future.narrow(0, 0, queries.size())
                        .narrow(1, some - diagonal, none - some),
                    kMasked);
}

// Hides the keys before those that a row sees.
void HideEarlier(const AttentionMask<int64_t>& mask,
                 QueryRange<int64_t> queries, const at::Tensor& future,
                 const at::Tensor& rows) {
  // No row sees the keys before `some`, all see the keys from `all` on. The
  // first row sees keys from `diagonal` on, each later row one key less.
  const int64_t diagonal = mask.FirstKey(queries.begin);
  const int64_t some = std::max<int64_t>(0, diagonal);
  const int64_t all = std::max(some, mask.Keys(queries.end - 1).begin);
  if (some > 0) rows.narrow(3, 0, some).fill_(kMasked);
  if (some == all) return;
  rows.narrow(3, some, all - some)
      .masked_fill_(future.narrow(0, some - diagonal, all - some)
                        .narrow(1, 0, queries.size())
                        .t(),
                    kMasked);
}

// Adds M in place. All scores of blind rows become -infinity.
void ApplyMask(const AttentionArgs& args, const at::Tensor& s_bhst) {
  if (args.documents.defined()) {
    for (int64_t begin = 0; begin < s_bhst.size(2); begin += kMaskRows) {
      const int64_t rows = std::min(kMaskRows, s_bhst.size(2) - begin);
      HideOtherDocuments(args.documents.narrow(2, begin, rows), /*first_key=*/0,
                         /*hide_later=*/args.mask.after != 0,
                         s_bhst.narrow(2, begin, rows));
    }
  }
  if (args.mask == MaskSpec::Full()) return;
  const AttentionMask<int64_t> mask = MaskOf(ProblemOf(args));
  const int64_t mask_rows = std::min(mask.s, kMaskRows);
  const at::Tensor future =
      at::ones({mask_rows, mask_rows}, s_bhst.options().dtype(at::kBool))
          .triu_(1);
  for (int64_t begin = 0; begin < mask.s; begin += kMaskRows) {
    const QueryRange<int64_t> queries = mask.QueriesFrom(begin, kMaskRows);
    const at::Tensor rows = s_bhst.narrow(2, begin, queries.size());
    if (mask.after != kAllKeys) HideLater(mask, queries, future, rows);
    if (mask.before != kAllKeys) HideEarlier(mask, queries, future, rows);
  }
}

// rowsum(dO o O), [B, H, S, 1], in FP32 (FP64).
at::Tensor RowSum(const at::Tensor& d_o_bhsd, const at::Tensor& o_bhsd) {
  return (d_o_bhsd.to(ArithmeticDtype(o_bhsd.scalar_type())) * o_bhsd)
      .sum(-1, /*keepdim=*/true);
}

// The index of the saved tensor in which the scores are computed.
size_t ScoresIn(HeldScores held) {
  return held == HeldScores::kWeights ? 0 : 1;
}

// Computes the softmax in the scores and the tensors of `out`. Returns the
// tensors that the backward pass needs, P first.
std::vector<at::Tensor> Softmax(HeldScores held, int64_t blind_rows,
                                const at::Tensor& s_bhst,
                                const AttentionOut& out) {
  const at::TensorOptions options = s_bhst.options();
  const auto scores = [&](size_t i) {
    return SavedOrEmpty(out, i, s_bhst.sizes(), options);
  };
  switch (held) {
    case HeldScores::kWeights:
      return {FusedSoftmax(s_bhst, blind_rows)};
    case HeldScores::kLibrarySoftmax: {
      const LibrarySoftmax x = {.y = s_bhst, .p = scores(0)};
      LibrarySoftmaxForward(x, blind_rows);
      return {x.p, x.y};
    }
    case HeldScores::kHandWrittenSoftmax: {
      const std::vector<int64_t> rows = {s_bhst.size(0), s_bhst.size(1),
                                         s_bhst.size(2), 1};
      const HandWrittenSoftmax x = {
          .s = s_bhst,
          .e = scores(2),
          .p = scores(0),
          .max = SavedOrEmpty(out, 3, rows, options),
          .sum = SavedOrEmpty(
              out, 4, rows,
              options.dtype(ArithmeticDtype(s_bhst.scalar_type())))};
      HandWrittenSoftmaxForward(x, blind_rows);
      return {x.p, x.s, x.e, x.max, x.sum};
    }
  }
  return {};
}

// The types of the tensors that Softmax() returns.
std::vector<TensorType> SavedTypes(HeldScores held, const AttentionProblem& p) {
  const TensorType scores = {{p.b, p.h, p.s, p.t}, p.dtype};
  switch (held) {
    case HeldScores::kWeights:
      return {scores};
    case HeldScores::kLibrarySoftmax:
      return {scores, scores};
    case HeldScores::kHandWrittenSoftmax:
      return {scores, scores, scores, TensorType{{p.b, p.h, p.s, 1}, p.dtype},
              TensorType{{p.b, p.h, p.s, 1}, ArithmeticDtype(p.dtype)}};
  }
  return {};
}

// Replaces dP by dS, given what Softmax() returned; not for kWeights.
void SoftmaxBackward(HeldScores held, int64_t blind_rows,
                     const std::vector<at::Tensor>& saved,
                     const at::Tensor& d_p_bhst) {
  if (held == HeldScores::kLibrarySoftmax) {
    LibrarySoftmaxBackward(saved[1], blind_rows, d_p_bhst);
  } else {
    HandWrittenSoftmaxBackward({.s = saved[1],
                                .e = saved[2],
                                .p = saved[0],
                                .max = saved[3],
                                .sum = saved[4]},
                               d_p_bhst);
  }
}

// The slopes of the soft cap at all scores, which are computed again.
at::Tensor CapSlopes(const AttentionArgs& args) {
  const int64_t g = args.k_bgtd.size(1);
  const at::Tensor q = GroupHeads(args.q_bhsd, g);
  const at::Tensor scores =
      at::empty({q.size(0), g, q.size(2), args.k_bgtd.size(2)}, q.options());
  Multiply(q, args.k_bgtd.transpose(2, 3), args.scale, scores);
  ApplySoftCap(args.soft_cap, scores);
  const at::Tensor wide = scores.to(ArithmeticDtype(scores.scalar_type()));
  SoftCapSlopes(args.soft_cap, wide);
  return wide;
}

// Bytes that a softmax holds for its gradient and the products' gradients, and
// bytes of its gradient's workspace.
struct SoftmaxMemory {
  int64_t held, backward;
};

SoftmaxMemory PlanSoftmax(HeldScores held, const AttentionProblem& p) {
  const int64_t element = c10::elementSize(p.dtype);
  const int64_t statistic = c10::elementSize(ArithmeticDtype(p.dtype));
  const int64_t rows = p.b * p.h * p.s;
  const int64_t scores = rows * p.t * element;
  switch (held) {
    case HeldScores::kWeights:
      // RowSum(): dO in the statistics' dtype (if different), dO o O, and the
      // sums.
      return {scores,
              rows * statistic * (p.d * (statistic > element ? 2 : 1) + 1)};
    case HeldScores::kLibrarySoftmax:
      return {2 * scores, scores};
    case HeldScores::kHandWrittenSoftmax:
      return {3 * scores + rows * (element + statistic),
              scores + 3 * rows * statistic};
  }
  return {};
}

}  // namespace

absl::Status NaiveBackend::Supports(const AttentionProblem& problem) const {
  RETURN_IF_ERROR(RequireNoSinks(problem));
  return RequireDtype(problem,
                      {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
}

AttentionMemory NaiveBackend::Plan(const AttentionProblem& problem) const {
  const AttentionProblem& p = problem;
  const int64_t element = c10::elementSize(p.dtype);
  const int64_t scores = p.b * p.h * p.s * p.t * element;
  const int64_t q = p.b * p.h * p.s * p.d * element;
  const int64_t mask_rows = std::min(p.s, kMaskRows);
  int64_t mask_bytes = p.mask == MaskSpec::Full() ? 0 : mask_rows * mask_rows;
  if (p.documents) {
    mask_bytes =
        std::max(mask_bytes, HideOtherDocumentsBytes(p.b, mask_rows, p.t));
  }
  const bool groups = p.h != p.g;
  const int64_t copies = ProductCopyBytes(p);
  const SoftmaxMemory softmax = PlanSoftmax(held_, p);
  AttentionMemory memory;
  memory.forward_bytes =
      std::max({copies, mask_bytes, SoftCapBytes(p, p.b * p.h * p.s * p.t)});
  if (!p.needs_grad) {
    memory.forward_bytes += softmax.held;
    return memory;
  }
  memory.saved = SavedTypes(held_, p);
  memory.saved_bytes = softmax.held + q;
  memory.backward_bytes =
      scores + (groups ? q : 0) + std::max(copies, softmax.backward);
  if (p.soft_cap != 0) {  // CapSlopes()
    memory.backward_bytes += scores + SoftCapBytes(p, p.b * p.h * p.s * p.t);
  }
  return memory;
}

absl::Status NaiveBackend::Forward(const AttentionArgs& args,
                                   AttentionOut* out) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const at::Tensor& q = args.q_bhsd;
    const int64_t b = q.size(0), h = q.size(1), s = q.size(2);
    const int64_t g = args.k_bgtd.size(1), t = args.k_bgtd.size(2);
    const std::vector<int64_t> grouped = {b, g, h / g * s, t};
    const at::Tensor s_bhst =
        SavedOrEmpty(*out, ScoresIn(held_), {b, h, s, t}, q.options());
    {
      const PhaseScope phase(args.phases, "scores");
      Multiply(GroupHeads(q, g), args.k_bgtd.transpose(2, 3), args.scale,
               s_bhst.view(grouped));
    }
    {
      const PhaseScope phase(args.phases, "softmax");
      ApplySoftCap(args.soft_cap, s_bhst);
      ApplyMask(args, s_bhst);
      if (args.wants_lse) {
        out->lse_bhs =
            s_bhst.to(ArithmeticDtype(q.scalar_type())).logsumexp(-1);
      }
      out->saved = Softmax(held_, BlindRows(args), s_bhst, *out);
    }
    const PhaseScope phase(args.phases, "values");
    out->o_bhsd = OutputOrEmpty(*out, q);
    MultiplyIntoHeads(out->saved[0].view(grouped), args.v_bgtd, 1, out->o_bhsd);
  });
}

absl::Status NaiveBackend::Backward(const AttentionArgs& args,
                                    const AttentionOut& out,
                                    const at::Tensor& d_o_bhsd,
                                    AttentionGrads* grads) const {
  return StatusFromTorch([&] {
    const at::NoGradGuard no_grad;
    const int64_t g = args.k_bgtd.size(1);
    const at::Tensor p = GroupHeads(out.saved[0], g);
    const at::Tensor d_o = GroupHeads(d_o_bhsd, g);
    Multiply(p.transpose(2, 3), d_o, 1, grads->dv_bgtd);
    const at::Tensor d_s = at::empty_like(p);
    Multiply(d_o, args.v_bgtd.transpose(2, 3), 1, d_s);
    double scale = args.scale;
    if (held_ == HeldScores::kWeights) {
      FusedSoftmaxBackward(p, GroupHeads(RowSum(d_o_bhsd, out.o_bhsd), g), d_s);
      scale /= 2;  // d_s holds 2 dS
    } else {
      SoftmaxBackward(held_, BlindRows(args), out.saved,
                      d_s.view(out.saved[0].sizes()));
    }
    if (args.soft_cap != 0) d_s.mul_(CapSlopes(args));
    MultiplyIntoHeads(d_s, args.k_bgtd, scale, grads->dq_bhsd);
    Multiply(d_s.transpose(2, 3), GroupHeads(args.q_bhsd, g), scale,
             grads->dk_bgtd);
  });
}

}  // namespace tessera
