#ifndef FRAMEWORK_PARAMS_TRUNCATED_NORMAL_LAUNCH_H_
#define FRAMEWORK_PARAMS_TRUNCATED_NORMAL_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/params/truncated_normal.h"

namespace tessera {

// Writes the first `numel` values, at least one, to `values`.
cudaError_t LaunchTruncatedNormal(const TruncatedNormal& normal, FloatType type,
                                  int64_t numel, void* values,
                                  cudaStream_t stream);
// The same FP32 values in two halves (split_float.h).
cudaError_t LaunchSplitTruncatedNormal(const TruncatedNormal& normal,
                                       int64_t numel, uint16_t* high,
                                       int16_t* low, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_TRUNCATED_NORMAL_LAUNCH_H_
