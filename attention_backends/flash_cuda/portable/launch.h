#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "attention_backends/flash_cuda/flash_params.h"
#include "framework/cuda/float_type.h"

namespace tessera {
namespace flash {
namespace portable {

// Launches for one element type and head dim, with or without a soft cap,
// instantiated by forward.cu and backward.cu; portable_kernels.cc selects one.
template <FloatType kType, int kHeadDim, bool kSoftCap>
cudaError_t LaunchForward(const ForwardParams& params, cudaStream_t stream);
template <FloatType kType, int kHeadDim, bool kSoftCap>
cudaError_t LaunchBackward(const BackwardParams& params, cudaStream_t stream);

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_H_
