#ifndef TRAINERS_CONFIG_RUN_CONFIG_H_
#define TRAINERS_CONFIG_RUN_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The longest sample, of a run or of `generate`.
inline constexpr int kMaxSampleTokens = 1 << 20;

// Adds each rule that `config` breaks to `violations`: the rules of each
// message, then those between messages. Rules that depend on the machine or on
// files are checked later, before step 0.
void Validate(const RunConfig& config, Violations violations);

void Validate(const TrainingConfig& config, Violations violations);

// `config` has passed Validate().
TrainingObjective ObjectiveOf(const TrainingConfig& config);

}  // namespace tessera

#endif  // TRAINERS_CONFIG_RUN_CONFIG_H_
