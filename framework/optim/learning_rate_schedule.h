#ifndef FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_
#define FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_

#include <cstdint>

namespace tessera {

// The learning rate as a pure function of the step, so a resumed run needs no
// other state. optimizer_config.proto has the equations; optimizer_config.h
// creates it from a config.
struct LearningRateSchedule {
  enum class Decay { kNone, kCosine, kLinear, kSqrt };

  double peak_lr = 0;
  int64_t warmup_steps = 0;
  Decay decay = Decay::kNone;
  int64_t decay_begin = 0;  // the first step of the decay
  int64_t decay_steps = 1;
  double final_ratio = 1;

  // The rate of step t = 0, 1, ...; also defined after the end of the run.
  double LearningRate(int64_t t) const;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_LEARNING_RATE_SCHEDULE_H_
