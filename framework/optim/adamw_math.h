#ifndef FRAMEWORK_OPTIM_ADAMW_MATH_H_
#define FRAMEWORK_OPTIM_ADAMW_MATH_H_

#include <math.h>

#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019,
// algorithm 2) with the equations of torch.optim.AdamW, in FP32. The CPU loop
// and the CUDA kernel both use these functions.

inline constexpr int kMaxAdamWGroups = 16;

// The constants of a run. Passed to the kernel by value.
struct AdamWOptions {
  struct Group {
    float weight_decay = 0;
    float lr_multiplier = 1;
  };
  double beta1 = 0.9;
  double beta2 = 0.999;
  float eps = 1e-8f;
  bool cautious_decay = false;  // DecayOf()
  Group groups[kMaxAdamWGroups];
};

// The values of one step that all parameters share.
struct AdamWStep {
  float lr;
  float grad_scale;                     // multiplies the gradient
  float bias_correction1;               // 1 - beta1^t
  float inverse_sqrt_bias_correction2;  // 1 / sqrt(1 - beta2^t)
};

// `t` counts from 1. Computed in FP64, because 1 - beta2^t cancels in FP32.
TESSERA_HOST_DEVICE AdamWStep PrepareAdamWStep(const AdamWOptions& options,
                                               float lr, float grad_scale,
                                               int64_t t) {
  const double exponent = static_cast<double>(t);
  return {lr, grad_scale, static_cast<float>(1 - pow(options.beta1, exponent)),
          static_cast<float>(1 / sqrt(1 - pow(options.beta2, exponent)))};
}

// One parameter with its two moments.
struct AdamWElement {
  float param;       // p
  float exp_avg;     // m
  float exp_avg_sq;  // v
};

// The factors of one group in one step, precomputed so that the loop over its
// elements has one division.
struct AdamWCoefficients {
  float grad_scale;
  float lr;         // of the group
  float decay;      // lr * weight_decay
  float step_size;  // lr / (1 - beta1^t)
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_bias_correction2;
  float eps;
  int32_t cautious_decay;  // 0 or 1
};

TESSERA_HOST_DEVICE AdamWCoefficients
MakeAdamWCoefficients(const AdamWOptions& options, const AdamWStep& step,
                      const AdamWOptions::Group& group) {
  const float lr = step.lr * group.lr_multiplier;
  return {step.grad_scale,
          lr,
          lr * group.weight_decay,
          lr / step.bias_correction1,
          static_cast<float>(1 - options.beta1),
          static_cast<float>(options.beta2),
          static_cast<float>(1 - options.beta2),
          step.inverse_sqrt_bias_correction2,
          options.eps,
          options.cautious_decay ? 1 : 0};
}

// The decay of a weight that an update moves against `direction`. With cautious
// weight decay (Chen et al., "Cautious Weight Decay", 2025) a weight only
// decays if its update does not make it larger:
//
//   p <- p - lr * u - lr * weight_decay * [u * p >= 0] * p
TESSERA_HOST_DEVICE float DecayOf(const AdamWCoefficients& c, float param,
                                  float direction) {
  const bool grows =
      (param > 0 && direction < 0) || (param < 0 && direction > 0);
  return c.cautious_decay != 0 && grows ? 0.0f : c.decay;
}

//   g <- grad_scale * g
//   m <- m + (1 - beta1) * (g - m)
//   v <- beta2 * v + (1 - beta2) * g^2
//   p <- p - lr * weight_decay * p
//          - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// with the decay of DecayOf(). p is rounded once, after decay and update have
// been added. A factor of 1 - lr * weight_decay would have FP32's granularity
// of 6e-8, which can be as large as the decay itself.
TESSERA_HOST_DEVICE AdamWElement UpdateAdamW(AdamWElement x, float gradient,
                                             const AdamWCoefficients& c) {
  const float g = c.grad_scale * gradient;
  x.exp_avg += c.one_minus_beta1 * (g - x.exp_avg);
  x.exp_avg_sq = c.beta2 * x.exp_avg_sq + c.one_minus_beta2 * g * g;
  const float denominator =
      sqrtf(x.exp_avg_sq) * c.inverse_sqrt_bias_correction2 + c.eps;
  const float decay = DecayOf(c, x.param, x.exp_avg);
  x.param -= decay * x.param + c.step_size * x.exp_avg / denominator;
  return x;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_ADAMW_MATH_H_
