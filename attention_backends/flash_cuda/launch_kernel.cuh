#ifndef ATTENTION_BACKENDS_FLASH_CUDA_LAUNCH_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_LAUNCH_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

namespace tessera {
namespace flash {

struct LaunchShape {
  int64_t blocks;
  int threads;
  int shared_bytes;  // dynamic
};

template <typename... Args>
cudaError_t LaunchKernel(void (*kernel)(Args...), const LaunchShape& shape,
                         cudaStream_t stream, const Args&... args) {
  if (shape.blocks > std::numeric_limits<int>::max()) {
    return cudaErrorInvalidConfiguration;
  }
  const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchConfig_t config = {};
  config.gridDim.x = static_cast<unsigned>(shape.blocks);
  config.blockDim.x = static_cast<unsigned>(shape.threads);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_LAUNCH_KERNEL_CUH_
