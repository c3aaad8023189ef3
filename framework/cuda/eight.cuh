#ifndef FRAMEWORK_CUDA_EIGHT_CUH_
#define FRAMEWORK_CUDA_EIGHT_CUH_

#include <type_traits>

#include "framework/cuda/kernel.cuh"

namespace tessera {
namespace device {

// Eight consecutive elements that a kernel keeps for a while. Two elements of
// 16 bits share a register; in an array each element would take one.
template <typename T>
struct Eight {
  static constexpr int kElements = 8;

  uint4 parts[sizeof(T) / 2] = {};  // zeros

  __device__ __forceinline__ Eight() {}
  // `p` is aligned to 16 bytes.
  __device__ __forceinline__ explicit Eight(const T* p) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
      parts[i] = reinterpret_cast<const uint4*>(p)[i];
    }
  }

  __device__ __forceinline__ void StoreTo(T* p) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
      reinterpret_cast<uint4*>(p)[i] = parts[i];
    }
  }

  __device__ __forceinline__ void ToFloats(float (&out)[kElements]) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
      const unsigned words[] = {parts[i].x, parts[i].y, parts[i].z, parts[i].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (std::is_same_v<T, float>) {
          out[4 * i + w] = __uint_as_float(words[w]);
        } else if constexpr (std::is_same_v<T, __half>) {
          const float2 two =
              __half22float2(reinterpret_cast<const __half2&>(words[w]));
          out[2 * w] = two.x;
          out[2 * w + 1] = two.y;
        } else {  // the upper half of an FP32 number
          out[2 * w] = __uint_as_float(words[w] << 16);
          out[2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
        }
      }
    }
  }
};

}  // namespace device
}  // namespace tessera

#endif  // FRAMEWORK_CUDA_EIGHT_CUH_
