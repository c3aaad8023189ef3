#ifndef TRAINERS_RUN_CONFIG_VALIDATION_H_
#define TRAINERS_RUN_CONFIG_VALIDATION_H_

#include "framework/base/violations.h"
#include "trainers/run_config.pb.h"

namespace tessera {

// Adds every rule that `config` breaks: each message's own, then those between
// messages. What needs the machine or the files is checked before step 0 where
// those are known.
void Validate(const RunConfig& config, Violations violations);

void Validate(const TrainingConfig& config, Violations violations);

}  // namespace tessera

#endif  // TRAINERS_RUN_CONFIG_VALIDATION_H_
