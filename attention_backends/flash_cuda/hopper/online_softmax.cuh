#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_

#include <cmath>

#include "attention_backends/flash_cuda/hopper/ptx.cuh"

namespace tessera {
namespace flash {
namespace hopper {

// Softmax over keys that arrive in tiles (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018), for the two rows that a thread
// shares with the three others of its quad. Scores lie as wgmma.cuh says.
class OnlineSoftmax {
 public:
  // scale_log2: scale log2(e), so that exp(scale (s - m)) is one FMA and one
  // exponential of base 2.
  __device__ explicit OnlineSoftmax(float scale_log2)
      : scale_log2_(scale_log2) {}

  // Replaces scores by exp(scale (s - maximum so far)), unnormalised. Returns
  // in `rescale` what earlier sums of the two rows must be multiplied by.
  template <int kCount>
  __device__ __forceinline__ void Update(float (&s)[kCount],
                                         float (&rescale)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = maximum_[row];
      maximum_[row] = fmaxf(before, QuadMaximum(s, row));
      // Of a row that has seen no key yet the maximum is -infinity; 0 in its
      // place makes exponentials of -infinity, not of NaN.
      const float base =
          maximum_[row] == -INFINITY ? 0.f : maximum_[row] * scale_log2_;
      rescale[row] = Exp2(before * scale_log2_ - base);
      sum_[row] = sum_[row] * rescale[row] + Exponentiate(s, row, base);
    }
  }

  // After the last tile: factors[row] = 1 / sum, 0 for a row without a key;
  // lse[row] = log sum exp(scale s), natural.
  __device__ __forceinline__ void Finish(float (&factors)[2], float (&lse)[2]) {
    constexpr float kLn2 = 0.693147180559945f;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = sum_[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factors[row] = sum > 0 ? 1 / sum : 0.f;
      lse[row] = sum > 0 ? (maximum_[row] * scale_log2_ + log2f(sum)) * kLn2
                         : -INFINITY;
    }
  }

 private:
  template <int kCount>
  __device__ __forceinline__ static float QuadMaximum(const float (&s)[kCount],
                                                      int row) {
    float maximum = s[2 * row];
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      maximum = fmaxf(maximum, fmaxf(s[i + 2 * row], s[i + 2 * row + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
    return fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
  }

  template <int kCount>
  __device__ __forceinline__ float Exponentiate(float (&s)[kCount], int row,
                                                float base) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
#pragma unroll
      for (int j = i + 2 * row; j < i + 2 * row + 2; ++j) {
        s[j] = Exp2(s[j] * scale_log2_ - base);
        sum += s[j];
      }
    }
    return sum;
  }

  const float scale_log2_;
  float maximum_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};  // of this thread's columns
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_
