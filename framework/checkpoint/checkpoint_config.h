#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_

#include <string>

#include "absl/time/time.h"
#include "framework/base/violations.h"
#include "framework/checkpoint/checkpoint_config.pb.h"

namespace tessera {

// Adds each rule of checkpoint_config.proto that `config` breaks to
// `violations`.
void Validate(const CheckpointConfig& config, Violations violations);

// The time after which another checkpoint is due: every_minutes or its default.
// Infinite if checkpoints do not depend on time.
absl::Duration SaveInterval(const CheckpointConfig& config);

// "every 15 minutes and after the last step"
std::string DescribeSaves(const CheckpointConfig& config);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_CONFIG_H_
