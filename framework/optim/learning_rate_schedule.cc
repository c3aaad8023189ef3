#include "framework/optim/learning_rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {

double LearningRateSchedule::LearningRate(int64_t t) const {
  if (t < warmup_steps) {
    return peak_lr * static_cast<double>(t + 1) /
           static_cast<double>(warmup_steps + 1);
  }
  if (decay == Decay::kNone || t < decay_begin) return peak_lr;
  const double x = std::min(1.0, static_cast<double>(t - decay_begin) /
                                     static_cast<double>(decay_steps));
  double remaining = 1 - x;
  if (decay == Decay::kCosine) {
    remaining = 0.5 * (1 + std::cos(std::numbers::pi * x));
  } else if (decay == Decay::kSqrt) {
    remaining = 1 - std::sqrt(x);
  }
  return peak_lr * (final_ratio + (1 - final_ratio) * remaining);
}

}  // namespace tessera
