#ifndef FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
#define FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/observe/observe_config.pb.h"

namespace tessera {

// Adds every rule of observe_config.proto that `config` breaks.
void Validate(const ObserveConfig& config, Violations violations);

// Whether to draw a bar: AUTO asks whether stderr can redraw a line
// (terminal.h).
bool WantsProgressBar(ObserveConfig::ProgressBar setting);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
