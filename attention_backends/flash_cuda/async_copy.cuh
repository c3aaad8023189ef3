#ifndef ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_

#include <cstdint>

// Copies to shared memory that a thread does not wait for (PTX ISA,
// "cp.async").

namespace tessera {
namespace flash {

// Copies 16 bytes in the background, or writes zeros; L1 keeps none of it.
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

// Waits for this thread's copies so far; a barrier makes others' visible.
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_ASYNC_COPY_CUH_
