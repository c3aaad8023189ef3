#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_HOPPER_KERNELS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_HOPPER_KERNELS_H_

#include <cuda_runtime_api.h>

#include "attention_backends/flash_cuda/flash_params.h"

// Attention on compute capability 9.0, for problems for which HasKernels()
// (tiles.h) is true. Launches are asynchronous.

namespace tessera {
namespace flash {
namespace hopper {

// params.counter: one int, overwritten.
cudaError_t Forward(const ForwardParams& params, cudaStream_t stream);

// The workspace holds BackwardWorkspaceBytes() (tiles.h).
cudaError_t Backward(const BackwardParams& params, cudaStream_t stream);

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_HOPPER_KERNELS_H_
