#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_PORTABLE_KERNELS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_PORTABLE_KERNELS_H_

#include <cuda_runtime_api.h>

#include "attention_backends/flash_cuda/flash_params.h"

// Attention on compute capability 8.0 and newer. BF16 and FP16 with head dims
// that are multiples of 8 up to 256, FP32 multiplied in TF32 up to
// kLargestTf32HeadDim; S and T up to 2^30; positive scale. Launches are
// asynchronous.

namespace tessera {
namespace flash {
namespace portable {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream);

// The workspace holds LayoutOf(params.forward, params.deterministic).total()
// bytes; see workspace.h.
cudaError_t Backward(const BackwardParams& params, cudaStream_t stream);

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_PORTABLE_KERNELS_H_
