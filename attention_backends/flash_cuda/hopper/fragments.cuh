#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FRAGMENTS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FRAGMENTS_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"

// The part of a product's sums that a thread holds (wgmma.cuh).

namespace tessera {
namespace flash {
namespace hopper {

// The first of this thread's columns.
__device__ __forceinline__ int FragmentColumn() { return threadIdx.x % 4 * 2; }

// Rounds sums to the next product's operand: 16 columns in 4 registers.
template <typename T, int kSums, int kCount>
__device__ __forceinline__ void ToOperand(const float (&sums)[kSums],
                                          uint32_t (&operand)[kCount][4]) {
  static_assert(kSums == 8 * kCount);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      operand[i][j] = Pack<T>(sums[8 * i + 2 * j], sums[8 * i + 2 * j + 1]);
    }
  }
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FRAGMENTS_CUH_
