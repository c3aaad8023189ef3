#include "tests/attention_backends/attention_oracle.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "ATen/ATen.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor RepeatHeads(const at::Tensor& x, int64_t query_heads) {
  return x.repeat_interleave(query_heads / x.size(1), 1);
}

// scale Q K^T, capped, + M; K has as many heads as Q.
at::Tensor MaskedScores(const AttentionInputs& in, const at::Tensor& q,
                        const at::Tensor& k) {
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * in.scale;
  if (in.soft_cap != 0) scores = (scores / in.soft_cap).tanh() * in.soft_cap;
  const int64_t s = q.size(2), t = k.size(2);
  const at::Tensor i = at::arange(s, q.options().dtype(at::kLong));
  const at::Tensor j = at::arange(t, q.options().dtype(at::kLong));
  // How far each key is after the key at which each query stands.
  const at::Tensor distance = j.unsqueeze(0) - i.unsqueeze(1) - (t - s);
  at::Tensor hidden = at::zeros_like(distance, at::kBool);
  if (in.mask.after != kAllKeys) hidden |= distance > in.mask.after;
  if (in.mask.before != kAllKeys) hidden |= distance < -in.mask.before;
  if (in.documents.defined()) {
    const at::Tensor first = in.documents[0];  // names a token's document
    hidden = hidden | (first.unsqueeze(1) != first.unsqueeze(2)).unsqueeze(1);
  }
  return scores.masked_fill(hidden, -kInfinity);
}

// The derivatives of capped scores by the scores; 0 where S is -infinity.
at::Tensor SoftCapSlopes(const at::Tensor& scores, double soft_cap) {
  const at::Tensor slopes = 1 - (scores / soft_cap).square();
  return slopes.masked_fill(scores == -kInfinity, 0);
}

// exp(S - max) / sum, with zeros in rows without a key.
at::Tensor Softmax(const at::Tensor& scores) {
  const at::Tensor max = scores.detach().amax(-1, true);
  const at::Tensor shift = max.masked_fill(max == -kInfinity, 0);
  const at::Tensor e = (scores - shift).exp();
  const at::Tensor sum = e.sum(-1, true);
  return e / sum.masked_fill(sum == 0, 1);
}

// Scores with the sinks, [H], as a last key.
at::Tensor WithSinks(const at::Tensor& scores, const at::Tensor& sinks) {
  const std::vector<int64_t> column = {scores.size(0), scores.size(1),
                                       scores.size(2), 1};
  return at::cat({scores, sinks.view({1, -1, 1, 1}).expand(column)}, 3);
}

at::Tensor Leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.detach().to(dtype).contiguous().clone().set_requires_grad(true);
}

// To the nearest number of TF32, ties away from zero.
at::Tensor ToTf32(const at::Tensor& x) {
  return x.contiguous().view(at::kInt).add(0x1000).bitwise_and(~0x1fff).view(
      at::kFloat);
}

at::Tensor Tf32Product(const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(ToTf32(a), ToTf32(b));
}

// The sums over the query heads that share a key head.
at::Tensor SumGroups(const at::Tensor& x, int64_t kv_heads) {
  const int64_t group = x.size(1) / kv_heads;
  return x.view({x.size(0), kv_heads, group, x.size(2), x.size(3)}).sum(2);
}

}  // namespace

at::Tensor PackedDocuments(int64_t batch, int64_t sequence) {
  constexpr int64_t kLengths[] = {40, 1, 3, 128, 64, 17, 300, 2};
  const at::Tensor documents = at::empty({2, batch, sequence}, at::kInt);
  for (int64_t row = 0; row < batch; ++row) {
    int64_t begin = 0;
    for (int64_t i = row; begin < sequence; ++i) {
      const int64_t length = std::min(kLengths[i % 8], sequence - begin);
      documents[0][row].narrow(0, begin, length).fill_(begin);
      documents[1][row].narrow(0, begin, length).fill_(begin + length);
      begin += length;
    }
  }
  return documents;
}

AttentionResults EagerAttention(const AttentionInputs& in,
                                at::ScalarType dtype) {
  const at::Tensor q = Leaf(in.q, dtype), k = Leaf(in.k, dtype),
                   v = Leaf(in.v, dtype);
  const int64_t heads = q.size(1);
  at::Tensor scores = MaskedScores(in, q, RepeatHeads(k, heads));
  at::Tensor sinks;
  if (in.sinks.defined()) {
    sinks = Leaf(in.sinks, dtype);
    scores = WithSinks(scores, sinks);
  }
  const at::Tensor p = Softmax(scores).narrow(3, 0, k.size(2));
  const at::Tensor o = at::matmul(p, RepeatHeads(v, heads));
  torch::autograd::backward({o}, {in.d_o.to(dtype)});
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {o.detach(), scores.detach().to(wide).logsumexp(-1),
          q.grad(),   k.grad(),
          v.grad(),   sinks.defined() ? sinks.grad() : at::Tensor()};
}

AttentionResults EagerTf32Attention(const AttentionInputs& in) {
  const at::Tensor q = in.q.detach(), d_o = in.d_o.detach();
  const int64_t h = q.size(1), g = in.k.size(1);
  const at::Tensor k = RepeatHeads(in.k.detach(), h);
  const at::Tensor v = RepeatHeads(in.v.detach(), h);
  const at::Tensor scores = MaskedScores(in, ToTf32(q), ToTf32(k));
  const at::Tensor p = Softmax(scores);
  const at::Tensor dp = Tf32Product(d_o, v.transpose(2, 3));
  at::Tensor ds = p * (dp - (p * dp).sum(-1, true)) * in.scale;
  if (in.soft_cap != 0) ds = ds * SoftCapSlopes(scores, in.soft_cap);
  return {Tf32Product(p, v), scores.logsumexp(-1), Tf32Product(ds, k),
          SumGroups(Tf32Product(ds.transpose(2, 3), q), g),
          SumGroups(Tf32Product(p.transpose(2, 3), d_o), g)};
}

AttentionResults AttentionMagnitudes(const AttentionInputs& in) {
  const at::Tensor q = in.q.detach().to(at::kDouble);
  const int64_t h = q.size(1), g = in.k.size(1);
  const at::Tensor k = RepeatHeads(in.k.detach().to(at::kDouble), h);
  const at::Tensor v = RepeatHeads(in.v.detach().to(at::kDouble), h).abs();
  const at::Tensor d_o = in.d_o.detach().to(at::kDouble).abs();
  const at::Tensor scores = MaskedScores(in, q, k);
  const at::Tensor size = scores.abs().masked_fill(scores == -kInfinity, 0);
  at::Tensor p = Softmax(scores), sink_p;
  if (in.sinks.defined()) {
    const at::Tensor all = Softmax(WithSinks(scores, in.sinks.to(at::kDouble)));
    p = all.narrow(3, 0, scores.size(3));
    sink_p = all.select(3, scores.size(3));
  }
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
  sums.dk = SumGroups(at::matmul(e.transpose(2, 3), q.abs()), g);
  sums.dv = SumGroups(at::matmul(wide_p.transpose(2, 3), d_o), g);
  if (in.sinks.defined()) {
    sums.d_sinks = (sink_p * (d_o * o).sum(-1)).sum(at::IntArrayRef({0, 2}));
  }
  return sums;
}

}  // namespace tessera::testing
