#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_

#include <cmath>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/instructions.cuh"

namespace tessera {
namespace flash {
namespace hopper {

// Softmax over keys that arrive in tiles (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018), for the two rows that a thread
// shares with the other three of its quad. Scores are laid out as in wgmma.cuh.
class OnlineSoftmax {
 public:
  // scale_log2: scale log2(e), so that exp(scale (s - m)) is one FMA and one
  // exponential of base 2.
  __device__ explicit OnlineSoftmax(float scale_log2)
      : scale_log2_(scale_log2) {}

  // Replaces scores by exp(scale (s - maximum so far)), unnormalised. Returns
  // in `rescale` the factors for earlier sums of the two rows.
  template <int kCount>
  __device__ __forceinline__ void Update(float (&s)[kCount],
                                         float (&rescale)[2]) {
    float row_max[2];
    RowMax(s, row_max);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float before = row_max_[row];
      row_max_[row] = fmaxf(before, row_max[row]);
      // The maximum of a row that has seen no key yet is -infinity; 0 in its
      // place keeps the exponents -infinity instead of NaN.
      const float base =
          row_max_[row] == -INFINITY ? 0.f : row_max_[row] * scale_log2_;
      rescale[row] = Exp2(before * scale_log2_ - base);
      row_sum_[row] = row_sum_[row] * rescale[row] + Exponentiate(s, row, base);
    }
  }

  // Call after the last tile: factors[row] = 1 / sum, 0 for a row without a
  // key; lse[row] = ln sum exp(scale s).
  __device__ __forceinline__ void Finish(float (&factors)[2], float (&lse)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = row_sum_[row];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      // A NaN propagates.
      factors[row] = sum == 0 ? 0.f : 1 / sum;
      lse[row] = sum == 0 ? -INFINITY
                          : (row_max_[row] * scale_log2_ + log2f(sum)) * kLn2;
    }
  }

 private:
  // The maximum over the quad's columns, by eight independent maxima: a warp is
  // alone on its scheduler here and would wait for each of a single chain.
  template <int kCount>
  __device__ __forceinline__ static void RowMax(const float (&s)[kCount],
                                                float (&row_max)[2]) {
    float m[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i] = s[i];
#pragma unroll
    for (int i = 8; i < kCount; ++i) m[i % 8] = fmaxf(m[i % 8], s[i]);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      row_max[row] = fmaxf(fmaxf(m[2 * row], m[2 * row + 1]),
                           fmaxf(m[2 * row + 4], m[2 * row + 5]));
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; ++lanes) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        row_max[row] =
            fmaxf(row_max[row], __shfl_xor_sync(~0u, row_max[row], lanes));
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ float Exponentiate(float (&s)[kCount], int row,
                                                float base) const {
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[i + 2 * row + j];
        score = Exp2(score * scale_log2_ - base);
        sum[j] += score;
      }
    }
    return sum[0] + sum[1];
  }

  const float scale_log2_;
  float row_max_[2] = {-INFINITY, -INFINITY};
  float row_sum_[2] = {0, 0};  // of this thread's columns
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_ONLINE_SOFTMAX_CUH_
