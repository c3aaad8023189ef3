#ifndef FRAMEWORK_PROGRAM_RECOMPUTE_CONFIG_VALIDATION_H_
#define FRAMEWORK_PROGRAM_RECOMPUTE_CONFIG_VALIDATION_H_

#include "framework/base/violations.h"
#include "framework/program/recompute_config.pb.h"

namespace tessera {

// Adds every rule of recompute_config.proto that `config` breaks.
void Validate(const RecomputeConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_RECOMPUTE_CONFIG_VALIDATION_H_
