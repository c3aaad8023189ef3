#ifndef FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
#define FRAMEWORK_PRECISION_PRECISION_CONFIG_H_

#include "framework/base/violations.h"
#include "framework/precision/precision_config.pb.h"

namespace tessera {

// Adds every rule of precision_config.proto that `config` breaks. What the
// device allows is PrecisionPolicy::Create()'s to say.
void Validate(const PrecisionConfig& config, Violations violations);

}  // namespace tessera

#endif  // FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
