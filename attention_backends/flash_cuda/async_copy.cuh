#ifndef ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_

#include <cstdint>

// Asynchronous copies to shared memory (PTX ISA, "cp.async").

namespace tessera {
namespace flash {

// Starts copying 16 bytes, or writing zeros, past L1.
__device__ __forceinline__ void CopyOrZero16(uint32_t to, const void* from,
                                             bool copy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
      "l"(from), "r"(copy ? 16 : 0)
      : "memory");
}

__device__ __forceinline__ void CopyOrZero8(uint32_t to, const void* from,
                                            bool copy) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to),
               "l"(from), "r"(copy ? 8 : 0)
               : "memory");
}

// Waits for this thread's copies so far; a barrier makes those of other threads
// visible.
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_
