#ifndef FRAMEWORK_CUDA_INSTRUCTIONS_CUH_
#define FRAMEWORK_CUDA_INSTRUCTIONS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Instructions of all GPUs that we support, one wrapper each. Addresses in
// shared memory are 32-bit, as in PTX.

namespace tessera {

// The CUDA block's dynamic shared memory, aligned for the widest swizzle of the
// copy engine and the tensor cores. A kernel that uses it must have no static
// shared memory, which would come first.
__device__ __forceinline__ unsigned char* SharedMemory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads four 8x8 matrices of 2-byte elements; lane l gives the address of row l
// % 8 of matrix l / 8.
__device__ __forceinline__ void LoadMatrices(uint32_t from, uint32_t (&r)[4]) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(from)
      : "memory");
}

// 2^x to 2 units in the last place; 0 for -infinity.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two values rounded to T, with `low` in the low half, which comes first in
// memory.
template <typename T>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <typename T>
__device__ __forceinline__ float2 Unpack(uint32_t packed) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&packed));
  } else {
    return __bfloat1622float2(
        *reinterpret_cast<const __nv_bfloat162*>(&packed));
  }
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_INSTRUCTIONS_CUH_
