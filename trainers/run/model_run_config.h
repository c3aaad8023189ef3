#ifndef TRAINERS_RUN_MODEL_RUN_CONFIG_H_
#define TRAINERS_RUN_MODEL_RUN_CONFIG_H_

#include "absl/status/statusor.h"
#include "framework/checkpoint/checkpoint.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// The config of a checkpoint or model folder, for programs that use only its
// model. Validates `model` and `precision`, because the file may have been
// edited: InvalidArgument names the place of each broken rule.
absl::StatusOr<RunConfig> ModelRunConfig(const Checkpoint& checkpoint);

}  // namespace tessera

#endif  // TRAINERS_RUN_MODEL_RUN_CONFIG_H_
