#ifndef FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
#define FRAMEWORK_PRECISION_PRECISION_CONFIG_H_

#include "absl/status/statusor.h"
#include "framework/base/violations.h"
#include "framework/precision/precision_config.pb.h"
#include "framework/precision/precision_policy.h"

namespace tessera {

// Adds each rule of precision_config.proto that `config` breaks to
// `violations`. CreatePrecisionPolicy() checks what the device supports.
void Validate(const PrecisionConfig& config, Violations violations);

// With more than one of `micro_batches` per step, the gradient buffer is FP32.
// InvalidArgument if `cuda` is false and the mode needs a GPU (TF32, FP16).
absl::StatusOr<PrecisionPolicy> CreatePrecisionPolicy(
    const PrecisionConfig& config, int micro_batches, bool cuda);

}  // namespace tessera

#endif  // FRAMEWORK_PRECISION_PRECISION_CONFIG_H_
