#ifndef FRAMEWORK_OPS_SWIGLU_SWIGLU_LAUNCH_H_
#define FRAMEWORK_OPS_SWIGLU_SWIGLU_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

struct SwiGluParams {
  FloatType type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;         // F
  const void* ab = nullptr;  // [rows, 2 F]
  void* h = nullptr;         // [rows, F]; forward writes
  const void* dh = nullptr;  // [rows, F]; backward reads
  void* d_ab = nullptr;      // [rows, 2 F]; backward writes
};
cudaError_t LaunchSwiGluForward(const SwiGluParams& params,
                                cudaStream_t stream);
cudaError_t LaunchSwiGluBackward(const SwiGluParams& params,
                                 cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SWIGLU_SWIGLU_LAUNCH_H_
