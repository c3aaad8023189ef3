#ifndef FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/base/violations.h"
#include "framework/optim/adamw_math.h"
#include "framework/optim/ema_math.h"
#include "framework/optim/learning_rate_schedule.h"
#include "framework/optim/muon_math.h"
#include "framework/optim/optimizer_config.pb.h"
#include "framework/optim/parameter_groups.h"

namespace tessera {

// Adds each rule of optimizer_config.proto that the message breaks to
// `violations`. AdamW::Create() checks those that depend on the model's
// parameters, a run's config those that depend on the number of steps.
void Validate(const OptimizerConfig& config, Violations violations);
void Validate(const AdamWConfig& config, Violations violations);
void Validate(const MuonConfig& config, Violations violations);
void Validate(const ScheduleConfig& config, Violations violations);

// W of optimizer_config.proto for a run of `total_steps` >= 1 steps. May exceed
// total_steps if set by warmup_steps.
int64_t WarmupSteps(const ScheduleConfig& config, int64_t total_steps);

// The phases fit into `total_steps`.
LearningRateSchedule LearningRateScheduleOf(const ScheduleConfig& config,
                                            double peak_lr,
                                            int64_t total_steps);

// `config` has passed Validate(). The order of the groups is kept.
AdamWOptions AdamWOptionsOf(const AdamWConfig& config);
std::vector<ParameterGroup> ParameterGroupsOf(const AdamWConfig& config);
MuonOptions MuonOptionsOf(const OptimizerConfig& config);
EmaOptions EmaOptionsOf(const EmaConfig& config);
// Patterns over the names of the parameters that Muon updates; none without it.
std::vector<std::string> MuonPatternsOf(const OptimizerConfig& config);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_
