#ifndef FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/optim/optimizer_config.pb.h"

namespace tessera {

// Adds every rule of optimizer_config.proto that a message breaks by itself.
// What also depends on the number of steps or on the model's parameters is
// checked where those are known: Schedule::Create() and AdamW::Create().
void Validate(const OptimizerConfig& config, Violations violations);
void Validate(const AdamWConfig& config, Violations violations);
void Validate(const ScheduleConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_CONFIG_H_
