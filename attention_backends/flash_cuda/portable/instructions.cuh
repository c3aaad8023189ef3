#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_INSTRUCTIONS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_INSTRUCTIONS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// The instructions of sm_80 that CUDA C++ has no name for. Addresses in shared
// memory are 32-bit, as the instructions take them.

namespace tessera {
namespace flash {
namespace portable {

// Of the dynamic shared memory, aligned to 128 bytes by the tiles' swizzle.
__device__ __forceinline__ uint32_t SharedMemory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

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

__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(from)
      : "memory");
}

__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4],
                                               uint32_t from) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(from)
      : "memory");
}

__device__ __forceinline__ void StoreShared(uint32_t to, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

__device__ __forceinline__ uint4 LoadShared16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// 2^x to 2 units in the last place; 0 for -infinity.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c += a b: A 16 x 16, B 16 x 8 in T, C 16 x 8 in FP32.
template <typename T>
__device__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                    uint32_t b1);
template <>
__device__ __forceinline__ void Mma<__nv_bfloat16>(float (&c)[4],
                                                   const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void Mma<__half>(float (&c)[4],
                                            const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two values rounded to T; `low` in the low half, which comes first in memory.
template <typename T>
__device__ uint32_t PackPair(float low, float high);
template <>
__device__ __forceinline__ uint32_t PackPair<__nv_bfloat16>(float low,
                                                            float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t PackPair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename T>
__device__ float2 UnpackPair(uint32_t pair);
template <>
__device__ __forceinline__ float2 UnpackPair<__nv_bfloat16>(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
template <>
__device__ __forceinline__ float2 UnpackPair<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_INSTRUCTIONS_CUH_
