#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_MATH_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_MATH_H_

#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {

// The loss of a language model for one token, and its gradient, in FP32. The
// CPU loops and the CUDA kernels both use these functions.
//
// With logits x of V words, target t, soft cap c, label smoothing eps and the
// z-loss's coefficient z:
//   y   = c tanh(x / c), or x without a soft cap
//   lse = log sum_j exp(y_j), p_j = exp(y_j - lse)
//   L   = (1 - eps) (lse - y_t) + eps (lse - mean(y)) + z lse^2
//   dL/dx_j = ((1 + 2 z lse) p_j - (1 - eps) [j = t] - eps / V)
//             (1 - tanh(x_j / c)^2)
//
// Soft cap: Gemma Team, "Gemma 2", 2024, section 2. Label smoothing: Szegedy et
// al., "Rethinking the Inception Architecture for Computer Vision", 2016,
// section 7, as in torch.nn.functional.cross_entropy. Z-loss: Chowdhery et al.,
// "PaLM", 2022, section 5.

// What training minimises instead of the plain cross entropy.
struct TrainingObjective {
  float label_smoothing = 0;  // eps, in [0, 1)
  float z_loss = 0;           // z, >= 0

  bool operator==(const TrainingObjective&) const = default;
};

// Passed to the kernels by value.
struct CrossEntropyOptions {
  float soft_cap = 0;  // c; 0: none
  TrainingObjective objective;

  bool operator==(const CrossEntropyOptions&) const = default;
};

// y and dy/dx of one logit.
struct Logit {
  float value, slope;
};

struct UncappedLogit {
  TESSERA_HOST_DEVICE Logit operator()(float x) const { return {x, 1}; }
};

// `Tanh` computes tanh and its derivative, for which host and device have
// different functions. A saturated logit has the slope 0.
template <typename Tanh>
struct CappedLogit {
  TESSERA_HOST_DEVICE Logit operator()(float x) const {
    const Logit t = Tanh()(x / cap);
    return {cap * t.value, t.slope};
  }
  float cap;
};

// What the loss of a row depends on.
struct RowStatistics {
  float lse;
  float target;  // y_t
  float mean;    // of y; read only with label smoothing
};

TESSERA_HOST_DEVICE float RowLoss(const TrainingObjective& o,
                                  const RowStatistics& row) {
  float loss = row.lse - row.target;
  // Without label smoothing, a word whose logit is -infinity costs nothing.
  if (o.label_smoothing > 0) {
    loss = (1 - o.label_smoothing) * loss +
           o.label_smoothing * (row.lse - row.mean);
  }
  if (o.z_loss > 0) loss += o.z_loss * row.lse * row.lse;
  return loss;
}

// dL/dy_j = softmax p_j - uniform - target [j = t]. The defaults are those of
// the plain cross entropy.
struct RowGradient {
  float softmax = 1;
  float target = 1;
  float uniform = 0;
};

// A term may depend on the row through its lse.
TESSERA_HOST_DEVICE RowGradient GradientOfRow(const TrainingObjective& o,
                                              float lse, int64_t vocab) {
  RowGradient g;
  if (o.z_loss > 0) g.softmax = 1 + 2 * o.z_loss * lse;
  g.target = 1 - o.label_smoothing;
  g.uniform = o.label_smoothing / static_cast<float>(vocab);
  return g;
}

TESSERA_HOST_DEVICE RowGradient Scaled(const RowGradient& g, float scale) {
  return {g.softmax * scale, g.target * scale, g.uniform * scale};
}

// dL/dy_j of a word that is not the target; p is its probability.
TESSERA_HOST_DEVICE float LogitGradient(const RowGradient& g, float p) {
  return g.softmax * p - g.uniform;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_MATH_H_
