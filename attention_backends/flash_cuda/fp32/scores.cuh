#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_SCORES_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_SCORES_CUH_

#include <cmath>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/key_range.h"

// Operations on scores between two products. Scores are q k, unscaled, or what
// a soft cap c makes of them (soft_cap.cuh); then c takes the place of `scale`.

namespace tessera {
namespace flash {
namespace fp32 {

// exp(x) to a few units in the last place for x <= 0. The exponent of exp(scale
// s - m) is rounded once, relative to its own size. With log2(e) folded into
// the scale, as in FlashAttention's kernels, it would be rounded relative to m,
// which is visible in FP32 at logits of 200.
__device__ __forceinline__ float Exp(float x) { return Exp2(x * kLog2E); }

// Sets scores to -infinity where the query does not see the key. Rows are
// queries and columns keys, or vice versa.
template <bool kRowsAreKeys, int kM, int kN>
__device__ __forceinline__ void ApplyMask(const AttentionMask<int>& mask,
                                          int first_row, int first_col,
                                          float (&s)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const auto [begin, end] =
        mask.template VisibleColumns<kRowsAreKeys>(first_row + m);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int col = first_col + ColumnOf(Lane(), n);
      if (col < begin || col >= end) s[m][n] = -INFINITY;
    }
  }
}

// The softmax over keys that arrive tile by tile (Milakov and Gimelshein,
// arXiv:1805.02867). With m the largest scaled score of a row so far:
//   m' = max(m, max_j scale s_j)
//   l' = l e^(m - m') + sum_j e^(scale s_j - m')
//   O' = O e^(m - m') + sum_j e^(scale s_j - m') v_j
// A lane holds the part of l that belongs to its own columns.
template <int kM>
class OnlineSoftmax {
 public:
  // `scale` is positive.
  __device__ __forceinline__ explicit OnlineSoftmax(float scale)
      : scale_(scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      row_max_[m] = -INFINITY;
      row_sum_[m] = 0;
    }
  }

  // Turns a tile's scores into e^(scale s - m') and rescales O to m'.
  template <int kN, int kO>
  __device__ __forceinline__ void Update(float (&s)[kM][kN],
                                         float (&o)[kM][kO]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float largest = s[m][0];
#pragma unroll
      for (int n = 1; n < kN; ++n) largest = fmaxf(largest, s[m][n]);
      const float max = fmaxf(row_max_[m], RowMax(largest) * scale_);
      // For a row that has seen no key yet every exponential is e^-infinity.
      const float offset = max == -INFINITY ? 0 : max;
      const float rescale = Exp(row_max_[m] - offset);
      row_max_[m] = max;
      row_sum_[m] *= rescale;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        s[m][n] = Exp(fmaf(s[m][n], scale_, -offset));
        row_sum_[m] += s[m][n];
      }
#pragma unroll
      for (int n = 0; n < kO; ++n) o[m][n] *= rescale;
    }
  }

  // Call after the last tile: divides O by l and returns L = ln(sum_j exp(scale
  // s_j)) in every lane of the row. Without a key O = 0, L = -infinity.
  template <int kO>
  __device__ __forceinline__ void Finish(float (&o)[kM][kO], float (&lse)[kM]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const float l = RowSum(row_sum_[m]);
      const float inverse = l == 0 ? 0 : 1 / l;
      lse[m] = l == 0 ? -INFINITY : row_max_[m] + logf(l);
#pragma unroll
      for (int n = 0; n < kO; ++n) o[m][n] *= inverse;
    }
  }

 private:
  // The maximum over the lanes of a row, which differ in the bits of LaneCol().
  static __device__ __forceinline__ float RowMax(float x) {
#pragma unroll
    for (int bit = 2; bit <= 8; bit *= 2) {
      x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bit));
    }
    return x;
  }
  static __device__ __forceinline__ float RowSum(float x) {
#pragma unroll
    for (int bit = 2; bit <= 8; bit *= 2) {
      x += __shfl_xor_sync(0xffffffff, x, bit);
    }
    return x;
  }

  const float scale_;
  float row_max_[kM], row_sum_[kM];
};

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_SCORES_CUH_
