#ifndef FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
#define FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/observe/observe_config.pb.h"

namespace tessera {

// Adds each rule of observe_config.proto that `config` breaks to `violations`.
void Validate(const ObserveConfig& config, Violations violations);

// Whether to draw a progress bar. AUTO draws one if stderr can redraw a line
// (terminal.h).
bool WantsProgressBar(ObserveConfig::ProgressBar setting);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_OBSERVE_CONFIG_H_
