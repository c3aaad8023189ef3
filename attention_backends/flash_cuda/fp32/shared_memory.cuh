#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_SHARED_MEMORY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_SHARED_MEMORY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera {
namespace flash {
namespace fp32 {

// The block's dynamic shared memory.
__device__ __forceinline__ float* SharedFloats() {
  extern __shared__ __align__(16) float shared_floats[];
  return shared_floats;
}

// As instructions take it.
__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_SHARED_MEMORY_CUH_
