#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/checkpoint/checkpoint_config.pb.h"

namespace tessera {

// Adds every rule of checkpoint_config.proto that `config` breaks.
void Validate(const CheckpointConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_
