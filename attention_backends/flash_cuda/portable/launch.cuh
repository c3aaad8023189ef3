#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "attention_backends/flash_cuda/flash_params.h"

namespace tessera {
namespace flash {
namespace portable {

template <ElementType kType>
using Element =
    std::conditional_t<kType == ElementType::kHalf, __half, __nv_bfloat16>;

struct LaunchShape {
  int64_t blocks;
  int threads;
  int shared_bytes;  // beyond 48 KiB a kernel has to be asked first
};

template <typename... Args>
cudaError_t Launch(void (*kernel)(Args...), const LaunchShape& shape,
                   cudaStream_t stream, const Args&... args) {
  if (shape.blocks > std::numeric_limits<int>::max()) {
    return cudaErrorInvalidConfiguration;
  }
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads,
           shape.shared_bytes, stream>>>(args...);
  return cudaGetLastError();
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_LAUNCH_CUH_
