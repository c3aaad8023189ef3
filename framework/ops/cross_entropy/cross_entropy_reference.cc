#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"

namespace tessera {
namespace {

// Calls fn(first_row, rows) for chunks of rows that have `chunk_elements`
// elements together.
template <typename Fn>
void ForEachChunk(const at::Tensor& logits, int64_t chunk_elements,
                  const Fn& fn) {
  const int64_t total = logits.size(0);
  const int64_t rows = std::max<int64_t>(1, chunk_elements / logits.size(1));
  for (int64_t begin = 0; begin < total; begin += rows) {
    fn(begin, std::min(rows, total - begin));
  }
}

// The logits of the loss under the soft cap.
at::Tensor Capped(const at::Tensor& x, double soft_cap) {
  return soft_cap == 0 ? x : at::tanh(x / soft_cap) * soft_cap;
}

// The losses of rows with logits y.
at::Tensor Losses(const TrainingObjective& objective, const at::Tensor& y,
                  const at::Tensor& targets, const at::Tensor& lse) {
  const double eps = objective.label_smoothing;
  const at::Tensor picked = targets.clamp_min(0).unsqueeze(1);
  at::Tensor losses = lse - y.gather(1, picked).squeeze(1);
  if (eps > 0) losses = (1 - eps) * losses + eps * (lse - y.mean(1));
  if (const double z = objective.z_loss; z > 0) losses += z * lse.square();
  return losses.masked_fill_(targets == kIgnoredTarget, 0);
}

// The gradient of Losses() with respect to y.
at::Tensor LossGradient(const TrainingObjective& objective, const at::Tensor& y,
                        const at::Tensor& targets, const at::Tensor& lse) {
  const double eps = objective.label_smoothing;
  at::Tensor dy = (y - lse.unsqueeze(1)).exp_();
  if (const double z = objective.z_loss; z > 0) {
    dy.mul_(1 + 2 * z * lse.unsqueeze(1));
  }
  if (eps > 0) dy.sub_(eps / static_cast<double>(y.size(1)));
  const at::Tensor picked = targets.clamp_min(0).unsqueeze(1);
  return dy.scatter_add_(
      1, picked,
      at::full({1, 1}, eps - 1, lse.options()).expand({targets.size(0), 1}));
}

}  // namespace

namespace reference {

void CrossEntropyForward(const CrossEntropyRows& in, const at::Tensor& loss,
                         const at::Tensor& lse, int64_t chunk_elements) {
  const at::Tensor losses = at::empty_like(lse);
  ForEachChunk(in.logits, chunk_elements, [&](int64_t begin, int64_t rows) {
    const auto chunk = [&](const at::Tensor& t) {
      return t.narrow(0, begin, rows);
    };
    const at::Tensor y =
        Capped(chunk(in.logits).to(lse.scalar_type()), in.options.soft_cap);
    chunk(lse).copy_(at::logsumexp(y, -1));
    chunk(losses).copy_(
        Losses(in.options.objective, y, chunk(in.targets), chunk(lse)));
  });
  loss.copy_(losses.sum());
}

void CrossEntropyBackward(const CrossEntropyRows& in, const at::Tensor& dloss,
                          const at::Tensor& lse, at::Tensor dlogits,
                          int64_t chunk_elements) {
  const double cap = in.options.soft_cap;
  // [N, 1]: zero for ignored targets.
  const at::Tensor scale =
      (dloss * (in.targets != kIgnoredTarget).to(lse.scalar_type()))
          .unsqueeze(1);
  ForEachChunk(in.logits, chunk_elements, [&](int64_t begin, int64_t rows) {
    const auto chunk = [&](const at::Tensor& t) {
      return t.narrow(0, begin, rows);
    };
    const at::Tensor y = Capped(chunk(in.logits).to(lse.scalar_type()), cap);
    at::Tensor dx =
        LossGradient(in.options.objective, y, chunk(in.targets), chunk(lse));
    if (cap != 0) dx.mul_(1 - (y / cap).square());
    chunk(dlogits).copy_(dx.mul_(chunk(scale)));
  });
}

}  // namespace reference

const CrossEntropyKernels CrossEntropyKernels::kReference = {
    .forward =
        [](const CrossEntropyRows& in, const at::Tensor& loss,
           const at::Tensor& lse) {
          reference::CrossEntropyForward(in, loss, lse);
        },
    .backward =
        [](const CrossEntropyRows& in, const at::Tensor& dloss,
           const at::Tensor& lse, at::Tensor dlogits) {
          reference::CrossEntropyBackward(in, dloss, lse, dlogits);
        }};

}  // namespace tessera
