#include "framework/ops/reference.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace reference {
namespace {

at::Tensor ToArithmetic(const at::Tensor& x) {
  return x.to(ArithmeticDtype(x.scalar_type()));
}

// The first and second elements of every pair that rotates together.
std::pair<at::Tensor, at::Tensor> Pairs(const at::Tensor& x,
                                        RopeLayout layout) {
  if (layout == RopeLayout::kHalved) {
    const int64_t half = x.size(-1) / 2;
    return {x.narrow(-1, 0, half), x.narrow(-1, half, half)};
  }
  return {x.slice(-1, 0, std::nullopt, 2), x.slice(-1, 1, std::nullopt, 2)};
}

// Calls fn(first_row, rows) over the rows of `logits`, as many at a time as
// have `chunk_elements` elements.
template <typename Fn>
void ForEachChunk(const at::Tensor& logits, int64_t chunk_elements,
                  const Fn& fn) {
  const int64_t total = logits.size(0);
  const int64_t rows = std::max<int64_t>(1, chunk_elements / logits.size(1));
  for (int64_t begin = 0; begin < total; begin += rows) {
    fn(begin, std::min(rows, total - begin));
  }
}

}  // namespace

void RmsNormForward(const at::Tensor& x, const at::Tensor& gain, double eps,
                    const at::Tensor& y, const at::Tensor& r) {
  const at::Tensor rows = Rows(x).to(r.scalar_type());
  at::Tensor inverse = r;
  inverse.copy_((rows.square().mean(-1) + eps).rsqrt());
  Rows(y).copy_(rows * r.unsqueeze(-1) * gain.to(rows.scalar_type()));
}

void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& r, const at::Tensor& gain,
                     const GradTarget& gain_grad, const at::Tensor& dx) {
  const at::ScalarType dtype = r.scalar_type();
  const at::Tensor r_column = r.unsqueeze(-1);
  const at::Tensor dy_rows = Rows(dy).to(dtype);
  const at::Tensor x_hat = Rows(x).to(dtype) * r_column;
  if (gain_grad.grad.defined()) {
    WriteGrad(gain_grad, (dy_rows * x_hat).sum(0));
  }
  if (!dx.defined()) return;
  const at::Tensor s = dy_rows * gain.to(dtype);
  const at::Tensor projection = (s * x_hat).mean(-1, /*keepdim=*/true);
  Rows(dx).copy_(r_column * (s - x_hat * projection));
}

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  const at::ScalarType dtype = ArithmeticDtype(x.scalar_type());
  const int64_t positions = x.size(1);
  // [S, 1, D/2], over B and heads.
  const at::Tensor cos =
      table.cos.narrow(0, 0, positions).unsqueeze(1).to(dtype);
  const at::Tensor sin =
      table.sin.narrow(0, 0, positions).unsqueeze(1).to(dtype);
  auto [first, second] = Pairs(x.narrow(2, 0, rotated_heads), table.layout);
  const at::Tensor u = first.to(dtype), v = second.to(dtype);
  if (inverse) {
    const at::Tensor rotated_u = u * cos + v * sin;
    second.copy_(v * cos - u * sin);
    first.copy_(rotated_u);
  } else {
    const at::Tensor rotated_u = u * cos - v * sin;
    second.copy_(v * cos + u * sin);
    first.copy_(rotated_u);
  }
}

void SwiGluForward(const at::Tensor& ab, const at::Tensor& h) {
  const int64_t f = ab.size(-1) / 2;
  const at::Tensor a = ToArithmetic(ab.narrow(-1, 0, f));
  const at::Tensor b = ToArithmetic(ab.narrow(-1, f, f));
  h.copy_(at::silu(a) * b);
}

void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab) {
  const int64_t f = ab.size(-1) / 2;
  const at::Tensor a = ToArithmetic(ab.narrow(-1, 0, f));
  const at::Tensor b = ToArithmetic(ab.narrow(-1, f, f));
  const at::Tensor dh_wide = ToArithmetic(dh);
  const at::Tensor sigma = at::sigmoid(a);
  const at::Tensor db = dh_wide * a * sigma;
  d_ab.narrow(-1, 0, f).copy_(dh_wide * b * sigma * (1 + a * (1 - sigma)));
  d_ab.narrow(-1, f, f).copy_(db);
}

void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse,
                         int64_t chunk_elements) {
  const at::ScalarType dtype = lse.scalar_type();
  ForEachChunk(logits, chunk_elements, [&](int64_t begin, int64_t rows) {
    lse.narrow(0, begin, rows)
        .copy_(at::logsumexp(logits.narrow(0, begin, rows).to(dtype), -1));
  });
  loss.copy_(CrossEntropyLoss(logits, targets, lse));
}

at::Tensor CrossEntropyLoss(const at::Tensor& logits, const at::Tensor& targets,
                            const at::Tensor& lse) {
  const at::Tensor picked =
      logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = lse - picked.to(lse.scalar_type());
  return losses.masked_fill(targets == kIgnoredTarget, 0).sum();
}

void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits, int64_t chunk_elements) {
  // [N, 1]: zero for ignored targets.
  const at::Tensor scale =
      (dloss * (targets != kIgnoredTarget).to(lse.scalar_type())).unsqueeze(1);
  const at::Tensor picked = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor minus_one = at::full({1, 1}, -1, lse.options());
  ForEachChunk(logits, chunk_elements, [&](int64_t begin, int64_t rows) {
    const auto chunk = [&](const at::Tensor& t) {
      return t.narrow(0, begin, rows);
    };
    at::Tensor p =
        (chunk(logits).to(lse.scalar_type()) - chunk(lse).unsqueeze(1)).exp_();
    p.scatter_add_(1, chunk(picked), minus_one.expand({rows, 1}));
    chunk(dlogits).copy_(p.mul_(chunk(scale)));
  });
}

}  // namespace reference
}  // namespace tessera
