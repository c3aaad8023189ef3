#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "attention_backends/flash_cuda/flash_params.h"

namespace tessera {
namespace flash {
namespace fp32 {

// Launches for one head dim, with or without a soft cap, instantiated by
// forward.cu and backward.cu; fp32_kernels.cc selects one.
template <int kHeadDim, bool kSoftCap>
cudaError_t LaunchForward(const ForwardParams& params, cudaStream_t stream);
template <int kHeadDim, bool kSoftCap>
cudaError_t LaunchBackward(const BackwardParams& params, cudaStream_t stream);

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_LAUNCH_H_
