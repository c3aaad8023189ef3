#include "tests/attention_backends/attention_oracle.h"

#include <cstdint>
#include <limits>

#include "ATen/ATen.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor RepeatHeads(const at::Tensor& x, int64_t query_heads) {
  return x.repeat_interleave(query_heads / x.size(1), 1);
}

// scale Q K^T + M; K has as many heads as Q.
at::Tensor MaskedScores(const AttentionInputs& in, const at::Tensor& q,
                        const at::Tensor& k) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * in.scale;
  if (!in.causal) return scores;
  const int64_t s = q.size(2), t = k.size(2);
  const at::Tensor i = at::arange(s, q.options().dtype(at::kLong));
  const at::Tensor j = at::arange(t, q.options().dtype(at::kLong));
  return scores.masked_fill(j.unsqueeze(0) > i.unsqueeze(1) + (t - s),
                            -kInfinity);
}

// exp(S - max) / sum, with zeros in rows without a key.
at::Tensor Softmax(const at::Tensor& scores) {
  const at::Tensor max = scores.detach().amax(-1, true);
  const at::Tensor shift = max.masked_fill(max == -kInfinity, 0);
  const at::Tensor e = (scores - shift).exp();
  const at::Tensor sum = e.sum(-1, true);
  return e / sum.masked_fill(sum == 0, 1);
}

at::Tensor Leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype).contiguous().clone().set_requires_grad(true);
}

}  // namespace

AttentionResults EagerAttention(const AttentionInputs& in,
                                at::ScalarType dtype) {
  const at::Tensor q = Leaf(in.q, dtype), k = Leaf(in.k, dtype),
                   v = Leaf(in.v, dtype);
  const int64_t heads = q.size(1);
  const at::Tensor scores = MaskedScores(in, q, RepeatHeads(k, heads));
  const at::Tensor o = at::matmul(Softmax(scores), RepeatHeads(v, heads));
  torch::autograd::backward({o}, {in.d_o.to(dtype)});
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {o.detach(), scores.detach().to(wide).logsumexp(-1), q.grad(),
          k.grad(), v.grad()};
}

AttentionResults AttentionMagnitudes(const AttentionInputs& in) {
  const at::Tensor q = in.q.detach().to(at::kDouble);
  const int64_t b = q.size(0), h = q.size(1), g = in.k.size(1);
  const at::Tensor k = RepeatHeads(in.k.detach().to(at::kDouble), h);
  const at::Tensor v = RepeatHeads(in.v.detach().to(at::kDouble), h).abs();
  const at::Tensor d_o = in.d_o.detach().to(at::kDouble).abs();
  const auto sum_groups = [&](const at::Tensor& x) {
    return x.view({b, g, h / g, x.size(2), x.size(3)}).sum(2);
  };
  const at::Tensor scores = MaskedScores(in, q, k);
  const at::Tensor size = scores.abs().masked_fill(scores == -kInfinity, 0);
  const at::Tensor p = Softmax(scores);
  const at::Tensor wide_p = p * (size + 1);
  const at::Tensor o = at::matmul(wide_p, v);
  const at::Tensor e = p *
                       (at::matmul(d_o, v.transpose(2, 3)) +
                        (d_o * at::matmul(p, v)).sum(-1, true)) *
                       in.scale;
  AttentionResults sums;
  sums.o = o;
  sums.lse = size.amax(-1) + 1;
  sums.dq = at::matmul(e, k.abs());
  sums.dk = sum_groups(at::matmul(e.transpose(2, 3), q.abs()));
  sums.dv = sum_groups(at::matmul(wide_p.transpose(2, 3), d_o));
  return sums;
}

}  // namespace tessera::testing
