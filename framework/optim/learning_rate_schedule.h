#ifndef FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_
#define FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "framework/optim/optimizer_config.pb.h"

namespace tessera {

// W of optimizer_config.proto in a run of `total_steps` >= 1 steps. What
// warmup_steps says may be more than fits.
int64_t WarmupSteps(const ScheduleConfig& config, int64_t total_steps);

// The learning rate as a pure function of the step; optimizer_config.proto has
// the equations. A value: a resumed run needs nothing but the step.
class LearningRateSchedule {
 public:
  // InvalidArgument where the phases do not fit into `total_steps`.
  static absl::StatusOr<LearningRateSchedule> Create(
      const ScheduleConfig& config, double peak_lr, int64_t total_steps);

  // Of step t = 0, 1, ...; also defined from total_steps on.
  double LearningRate(int64_t t) const;

 private:
  enum class Decay { kNone, kCosine, kLinear, kSqrt };

  LearningRateSchedule() = default;

  double peak_lr_ = 0;
  int64_t warmup_steps_ = 0;
  Decay decay_ = Decay::kNone;
  int64_t decay_begin_ = 0;  // the first step of the decay
  int64_t decay_steps_ = 1;
  double final_ratio_ = 1;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_
