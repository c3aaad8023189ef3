#ifndef FRAMEWORK_PROGRAM_EXECUTION_CONFIG_H_
#define FRAMEWORK_PROGRAM_EXECUTION_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/program/execution_config.pb.h"

namespace tessera {

// Adds each rule of execution_config.proto that `config` breaks to
// `violations`.
void Validate(const ExecutionConfig& config, Violations violations);
void Validate(const RecomputeConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_EXECUTION_CONFIG_H_
