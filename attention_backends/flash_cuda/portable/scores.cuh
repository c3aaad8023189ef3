#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_

#include <cmath>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/instructions.cuh"
#include "attention_backends/flash_cuda/portable/tile.cuh"
#include "attention_backends/key_range.h"

// Operations on scores between two products. Scores are q k, unscaled, or what
// a soft cap makes of them (soft_cap.cuh); exponentials are base 2, with the
// factor scale log2(e), or c log2(e) under a cap c.

namespace tessera {
namespace flash {
namespace portable {

// Sets scores to -infinity where the query does not see the key. Rows are
// queries and columns keys, or vice versa; a row shows the columns [begin,
// end).
template <bool kRowsAreKeys, int kM, int kN>
__device__ __forceinline__ void ApplyMask(const AttentionMask<int>& mask,
                                          int first_row, int first_col,
                                          float (&s)[kM][kN][4]) {
  const int lane_col = first_col + AccumulatorCol(Lane(), 0);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + AccumulatorRow(Lane(), 2 * half);
      auto [begin, end] = mask.template VisibleColumns<kRowsAreKeys>(row);
      // Relative to the lane's first column, as n and e are.
      begin -= lane_col;
      end -= lane_col;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int col = 8 * n + e;
          if (col < begin || col >= end) s[m][n][2 * half + e] = -INFINITY;
        }
      }
    }
  }
}

// The softmax over keys that arrive tile by tile (Milakov and Gimelshein,
// arXiv:1805.02867). With m the largest score of a row so far:
//   m' = max(m, max_j s_j)
//   l' = l 2^(c (m - m')) + sum_j 2^(c (s_j - m'))
//   O' = O 2^(c (m - m')) + sum_j 2^(c (s_j - m')) v_j
// A lane holds two rows of each 16-row tile, and the part of l that belongs to
// its own columns.
template <int kM>
class OnlineSoftmax {
 public:
  // `factor`: scale log2(e) or c log2(e), positive.
  __device__ __forceinline__ explicit OnlineSoftmax(float factor)
      : factor_(factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      row_max_[m][0] = row_max_[m][1] = -INFINITY;
      row_sum_[m][0] = row_sum_[m][1] = 0;
    }
  }

  // Turns a tile's scores into 2^(c (s - m')) and rescales O to m'.
  template <int kN, int kO>
  __device__ __forceinline__ void Update(float (&s)[kM][kN][4],
                                         float (&o)[kM][kO][4]) {
    float max[kM][2];
    RowMax(s, max);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float rescale = UpdateRow(s[m], half, m, max[m][half]);
#pragma unroll
        for (int n = 0; n < kO; ++n) {
          o[m][n][2 * half] *= rescale;
          o[m][n][2 * half + 1] *= rescale;
        }
      }
    }
  }

  // Call after the last tile: divides O by l and returns L = ln(sum_j exp(scale
  // s_j)) in every lane of the row. Without a key O = 0, L = -infinity.
  template <int kO>
  __device__ __forceinline__ void Finish(float (&o)[kM][kO][4],
                                         float (&lse)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float l = row_sum_[m][half];
        l += __shfl_xor_sync(0xffffffff, l, 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        const float inverse = l == 0 ? 0 : 1 / l;
        lse[m][half] =
            l == 0 ? -INFINITY : row_max_[m][half] * factor_ * kLn2 + logf(l);
#pragma unroll
        for (int n = 0; n < kO; ++n) {
          o[m][n][2 * half] *= inverse;
          o[m][n][2 * half + 1] *= inverse;
        }
      }
    }
  }

 private:
  // The maxima over the tile's columns, of all rows at once: few warps share a
  // scheduler here, and would wait for each maximum of a single chain.
  template <int kN>
  __device__ __forceinline__ static void RowMax(const float (&s)[kM][kN][4],
                                                float (&max)[kM][2]) {
    float lane[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) lane[m][e] = s[m][0][e];
    }
#pragma unroll
    for (int n = 1; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          lane[m][e] = fmaxf(lane[m][e], s[m][n][e]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max[m][half] = fmaxf(lane[m][2 * half], lane[m][2 * half + 1]);
      }
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; ++lanes) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          max[m][half] = fmaxf(
              max[m][half], __shfl_xor_sync(0xffffffff, max[m][half], lanes));
        }
      }
    }
  }

  // Returns 2^(c (m - m')).
  template <int kN>
  __device__ __forceinline__ float UpdateRow(float (&s)[kN][4], int half, int m,
                                             float tile_max) {
    const float before = row_max_[m][half];
    const float max = fmaxf(before, tile_max);
    row_max_[m][half] = max;
    // For a row that has seen no key yet every exponential is 2^-infinity.
    const float offset = max == -INFINITY ? 0 : max * factor_;
    const float rescale = Exp2(before * factor_ - offset);
    float sum[2] = {row_sum_[m][half] * rescale, 0};
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s[n][2 * half + e];
        score = Exp2(score * factor_ - offset);
        sum[e] += score;
      }
    }
    row_sum_[m][half] = sum[0] + sum[1];
    return rescale;
  }

  const float factor_;
  float row_max_[kM][2], row_sum_[kM][2];
};

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_
