#ifndef TRAINERS_CONFIG_RUN_CONFIG_H_
#define TRAINERS_CONFIG_RUN_CONFIG_H_

#include "framework/base/violations.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// Adds every rule that `config` breaks: each message's own, then those between
// messages. What needs the machine or the files is checked before step 0 where
// those are known.
void Validate(const RunConfig& config, Violations violations);

void Validate(const TrainingConfig& config, Violations violations);

}  // namespace tessera

#endif  // TRAINERS_CONFIG_RUN_CONFIG_H_
