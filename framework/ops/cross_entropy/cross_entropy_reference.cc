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

}  // namespace

namespace reference {

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

const CrossEntropyKernels CrossEntropyKernels::kReference = {
    .forward =
        [](const at::Tensor& logits, const at::Tensor& targets,
           const at::Tensor& loss, const at::Tensor& lse) {
          reference::CrossEntropyForward(logits, targets, loss, lse);
        },
    .backward =
        [](const at::Tensor& dloss, const at::Tensor& logits,
           const at::Tensor& targets, const at::Tensor& lse,
           at::Tensor dlogits) {
          reference::CrossEntropyBackward(dloss, logits, targets, lse, dlogits);
        }};

}  // namespace tessera
