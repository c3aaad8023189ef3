#ifndef FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
#define FRAMEWORK_PRECISION_PRECISION_CONFIG_H_

#include "absl/status/statusor.h"
#include "framework/base/violations.h"
#include "framework/precision/precision_config.pb.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// Adds every rule of precision_config.proto that `config` breaks. What the
// device allows is CreatePrecisionPolicy()'s to say.
void Validate(const PrecisionConfig& config, Violations violations);

// `micro_batches` per step: with more than one the gradient buffer is FP32.
// InvalidArgument where `cuda` is false and the mode needs a GPU's units (TF32,
// FP16).
absl::StatusOr<PrecisionPolicy> CreatePrecisionPolicy(
    const PrecisionConfig& config, int micro_batches, bool cuda);

}  // namespace tessera

#endif  // FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
