#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_FP32_KERNELS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_FP32_KERNELS_H_

#include <cuda_runtime_api.h>

#include "attention_backends/flash_cuda/flash_params.h"

// FP32 attention on compute capability 8.0 and newer, by FP32 multiply-adds:
// tensor cores would round the operands to TF32. Head dims that are multiples
// of 8 up to 256; S and T up to 2^30; positive scale. Launches are
// asynchronous.

namespace tessera {
namespace flash {
namespace fp32 {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream);

// The workspace holds BackwardWorkspaceBytes(params.forward); see workspace.h.
cudaError_t Backward(const BackwardParams& params, cudaStream_t stream);

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_FP32_KERNELS_H_
