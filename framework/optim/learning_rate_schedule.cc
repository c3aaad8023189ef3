#include "framework/optim/learning_rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera {

int64_t WarmupSteps(const ScheduleConfig& config, int64_t total_steps) {
  if (!config.has_warmup_ratio()) return config.warmup_steps();
  const double steps = config.warmup_ratio() * static_cast<double>(total_steps);
  return std::min<int64_t>(std::llround(steps), total_steps - 1);
}

absl::StatusOr<LearningRateSchedule> LearningRateSchedule::Create(
    const ScheduleConfig& config, double peak_lr, int64_t total_steps) {
  LearningRateSchedule schedule;
  schedule.peak_lr_ = peak_lr;
  const int64_t warmup_steps = WarmupSteps(config, total_steps);
  schedule.warmup_steps_ = warmup_steps;
  const int64_t after_warmup = total_steps - warmup_steps;
  if (after_warmup < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule.warmup_steps is ", warmup_steps, " but the run has only ",
        total_steps, " steps; warm up for fewer, or train for more"));
  }
  schedule.decay_begin_ = warmup_steps;
  const auto decay_over = [&](const auto& shape, Decay decay) {
    schedule.decay_ = decay;
    schedule.decay_steps_ =
        shape.has_decay_steps() ? shape.decay_steps() : after_warmup;
    schedule.final_ratio_ = shape.final_ratio();
  };
  if (config.has_cosine()) {
    decay_over(config.cosine(), Decay::kCosine);
  } else if (config.has_linear()) {
    decay_over(config.linear(), Decay::kLinear);
  } else if (config.has_wsd()) {
    const WsdSchedule& wsd = config.wsd();
    if (wsd.decay_steps() > after_warmup) {
      return absl::InvalidArgumentError(absl::StrCat(
          "schedule.wsd.decay_steps is ", wsd.decay_steps(), " but only ",
          after_warmup, " steps follow the warm-up of ", warmup_steps,
          "; shorten one of them"));
    }
    decay_over(
        wsd, wsd.decay() == WsdSchedule::SQRT ? Decay::kSqrt : Decay::kLinear);
    schedule.decay_begin_ = total_steps - wsd.decay_steps();
  }
  return schedule;
}

double LearningRateSchedule::LearningRate(int64_t t) const {
  if (t < warmup_steps_) {
    return peak_lr_ * static_cast<double>(t + 1) /
           static_cast<double>(warmup_steps_ + 1);
  }
  if (decay_ == Decay::kNone || t < decay_begin_) return peak_lr_;
  const double x = std::min(1.0, static_cast<double>(t - decay_begin_) /
                                     static_cast<double>(decay_steps_));
  double remaining = 1 - x;
  if (decay_ == Decay::kCosine) {
    remaining = 0.5 * (1 + std::cos(std::numbers::pi * x));
  } else if (decay_ == Decay::kSqrt) {
    remaining = 1 - std::sqrt(x);
  }
  return peak_lr_ * (final_ratio_ + (1 - final_ratio_) * remaining);
}

}  // namespace tessera
