#ifndef FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
#define FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/observe/observe_config.pb.h"

namespace tessera {

// Adds every rule of observe_config.proto that `config` breaks.
void Validate(const ObserveConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
