#ifndef MODELS_MODEL_CONFIG_H_
#define MODELS_MODEL_CONFIG_H_

#include "framework/base/violations.h"
#include "models/model_config.pb.h"
#include "models/model_shape.h"

namespace tessera {

// Adds each rule of model_config.proto that `config` breaks to `violations`,
// except those of `frozen` that need the parameters' names, which
// LmParameters() checks.
void Validate(const ModelConfig& config, Violations violations);

// `config` has passed Validate().
ModelShape ModelShapeOf(const ModelConfig& config);

}  // namespace tessera

#endif  // MODELS_MODEL_CONFIG_H_
