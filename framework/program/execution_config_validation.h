#ifndef FRAMEWORK_PROGRAM_EXECUTION_CONFIG_VALIDATION_H_
#define FRAMEWORK_PROGRAM_EXECUTION_CONFIG_VALIDATION_H_

#include "framework/base/violations.h"
#include "framework/program/execution_config.pb.h"

namespace tessera {

// Adds every rule of execution_config.proto that `config` breaks.
void Validate(const ExecutionConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_EXECUTION_CONFIG_VALIDATION_H_
