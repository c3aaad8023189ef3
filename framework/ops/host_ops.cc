#include "framework/ops/host_ops.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "framework/ops/cross_entropy.h"
#include "framework/ops/host_loops.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace host {
namespace {

bool HasLoops(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

// Calls fn(row) for each row, on all cores; of 64 KiB or more at a time.
template <typename Fn>
void ForEachRow(int64_t rows, int64_t width, const Fn& fn) {
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) fn(row);
  });
}

}  // namespace

void RmsNormForward(const at::Tensor& x, const at::Tensor& gain, double eps,
                    const at::Tensor& y, const at::Tensor& r) {
  if (!HasLoops(x) || !HasLoops(gain) || !HasLoops(y) || !HasLoops(r)) {
    reference::RmsNormForward(x, gain, eps, y, r);
    return;
  }
  const int64_t rows = RowCount(x), width = x.size(-1);
  const float* const from = x.const_data_ptr<float>();
  const float* const gains = gain.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  float* const inverse = r.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    inverse[row] = Normalize(from + row * width, gains, static_cast<float>(eps),
                             width, to + row * width);
  });
}

void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& r, const at::Tensor& gain,
                     const GradTarget& gain_grad, const at::Tensor& dx) {
  if (!HasLoops(x) || !HasLoops(gain) || !HasLoops(r) ||
      dy.scalar_type() != at::kFloat) {
    reference::RmsNormBackward(dy, x, r, gain, gain_grad, dx);
    return;
  }
  const int64_t rows = RowCount(x), width = x.size(-1);
  const at::Tensor dy_rows = dy.contiguous();
  const at::Tensor d_x = dx.defined() ? dx : at::empty_like(x);
  // Sums over so many rows each, whatever the number of threads: the gradient
  // does not depend on it.
  constexpr int64_t kRowsPerSum = 64;
  const int64_t sums = (rows + kRowsPerSum - 1) / kRowsPerSum;
  at::Tensor partial;
  if (gain_grad.grad.defined()) partial = at::zeros({sums, width}, x.options());
  const float* const gradient = dy_rows.const_data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  const float* const inverse = r.const_data_ptr<float>();
  const float* const gains = gain.const_data_ptr<float>();
  float* const to = d_x.mutable_data_ptr<float>();
  float* const dgain =
      partial.defined() ? partial.mutable_data_ptr<float>() : nullptr;
  ForEachRow(sums, kRowsPerSum * width, [&](int64_t sum) {
    const int64_t end = std::min(rows, (sum + 1) * kRowsPerSum);
    for (int64_t row = sum * kRowsPerSum; row < end; ++row) {
      const int64_t offset = row * width;
      NormalizeGradient(gradient + offset, from + offset, gains, inverse[row],
                        width, to + offset,
                        dgain == nullptr ? nullptr : dgain + sum * width);
    }
  });
  if (partial.defined()) WriteGrad(gain_grad, partial.sum(0));
}

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  if (!HasLoops(x)) {
    reference::Rotate(x, table, rotated_heads, inverse);
    return;
  }
  const int64_t positions = x.size(1), heads = x.size(2), head_dim = x.size(3);
  const int64_t pairs = head_dim / 2;
  const auto rotate =
      table.layout == RopeLayout::kHalved ? RotateHalved : RotateInterleaved;
  const float* const cos = table.cos.const_data_ptr<float>();
  const float* const sin = table.sin.const_data_ptr<float>();
  float* const data = x.mutable_data_ptr<float>();
  ForEachRow(x.size(0) * positions, heads * head_dim, [&](int64_t token) {
    const int64_t angle = token % positions * pairs;
    float* const first = data + token * heads * head_dim;
    for (int64_t head = 0; head < rotated_heads; ++head) {
      rotate(cos + angle, sin + angle, inverse ? -1 : 1, pairs,
             first + head * head_dim);
    }
  });
}

void SwiGluForward(const at::Tensor& ab, const at::Tensor& h) {
  if (!HasLoops(ab)) {
    reference::SwiGluForward(ab, h);
    return;
  }
  const int64_t width = ab.size(-1) / 2;
  const float* const from = ab.const_data_ptr<float>();
  float* const to = h.mutable_data_ptr<float>();
  ForEachRow(RowCount(ab), width, [&](int64_t row) {
    const float* const a = from + row * 2 * width;
    SwiGlu(a, a + width, width, to + row * width);
  });
}

void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab) {
  if (!HasLoops(ab) || !HasLoops(d_ab) || dh.scalar_type() != at::kFloat) {
    reference::SwiGluBackward(ab, dh, d_ab);
    return;
  }
  const int64_t width = ab.size(-1) / 2;
  const at::Tensor dh_rows = dh.contiguous();
  const float* const from = ab.const_data_ptr<float>();
  const float* const gradient = dh_rows.const_data_ptr<float>();
  float* const to = d_ab.mutable_data_ptr<float>();
  ForEachRow(RowCount(ab), width, [&](int64_t row) {
    const float* const a = from + row * 2 * width;
    float* const d_a = to + row * 2 * width;
    SwiGluGradient(a, a + width, gradient + row * width, width, d_a,
                   d_a + width);
  });
}

void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse) {
  if (!HasLoops(logits) || !HasLoops(lse)) {
    reference::CrossEntropyForward(logits, targets, loss, lse);
    return;
  }
  const int64_t rows = logits.size(0), width = logits.size(1);
  const float* const from = logits.const_data_ptr<float>();
  float* const to = lse.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    to[row] = LogSumExp(from + row * width, width);
  });
  loss.copy_(reference::CrossEntropyLoss(logits, targets, lse));
}

void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits) {
  if (!HasLoops(logits) || !HasLoops(lse) || !HasLoops(dlogits)) {
    reference::CrossEntropyBackward(dloss, logits, targets, lse, dlogits);
    return;
  }
  const int64_t rows = logits.size(0), width = logits.size(1);
  const at::Tensor ids = targets.contiguous();
  const float scale = dloss.item<float>();
  const float* const from = logits.const_data_ptr<float>();
  const float* const sums = lse.const_data_ptr<float>();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  float* const to = dlogits.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    float* const d_row = to + row * width;
    const bool counts = id[row] != kIgnoredTarget;
    ScaledSoftmax(from + row * width, sums[row], counts ? scale : 0, width,
                  d_row);
    if (counts) d_row[id[row]] -= scale;
  });
}

}  // namespace host
}  // namespace tessera
