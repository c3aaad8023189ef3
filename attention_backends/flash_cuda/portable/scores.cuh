#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_

#include <cmath>

#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/instructions.cuh"
#include "attention_backends/flash_cuda/portable/tile.cuh"
#include "attention_backends/flash_cuda/portable/visibility.h"

// What happens to scores between two products. They are q k, unscaled;
// exponentials are base 2, with scale log2(e) as their factor.

namespace tessera {
namespace flash {
namespace portable {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// -infinity where the query does not see the key. Rows are queries and columns
// keys, or the other way round.
template <bool kRowsAreKeys, int kM, int kN>
__device__ __forceinline__ void Hide(const Visibility& visible, int first_row,
                                     int first_col, float (&s)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + 16 * m + AccumulatorRow(Lane(), e);
        const int col = first_col + 8 * n + AccumulatorCol(Lane(), e);
        const int query = kRowsAreKeys ? col : row;
        const int key = kRowsAreKeys ? row : col;
        if (key >= visible.KeyLimit(query)) s[m][n][e] = -INFINITY;
      }
    }
  }
}

// The softmax over keys that arrive tile by tile (Milakov and Gimelshein,
// arXiv:1805.02867). With m the largest score of a row so far:
//   m' = max(m, max_j s_j)
//   l' = l 2^(c (m - m')) + sum_j 2^(c (s_j - m'))
//   O' = O 2^(c (m - m')) + sum_j 2^(c (s_j - m')) v_j
// A lane holds two rows of each row block; of l it holds its own columns' part.
template <int kM>
class OnlineSoftmax {
 public:
  // `factor`: scale log2(e), positive.
  __device__ __forceinline__ explicit OnlineSoftmax(float factor)
      : factor_(factor) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      max_[m][0] = max_[m][1] = -INFINITY;
      sum_[m][0] = sum_[m][1] = 0;
    }
  }

  // Turns a tile's scores into 2^(c (s - m')) and rescales O for it.
  template <int kN, int kO>
  __device__ __forceinline__ void Update(float (&s)[kM][kN][4],
                                         float (&o)[kM][kO][4]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float decay = UpdateRow(s[m], half, m);
#pragma unroll
        for (int n = 0; n < kO; ++n) {
          o[m][n][2 * half] *= decay;
          o[m][n][2 * half + 1] *= decay;
        }
      }
    }
  }

  // After the last tile: divides O by l. Gives L = ln(sum_j exp(scale s_j)),
  // which every lane of the row then has. Without a key O = 0, L = -infinity.
  template <int kO>
  __device__ __forceinline__ void Finish(float (&o)[kM][kO][4],
                                         float (&log_sum)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float l = sum_[m][half];
        l += __shfl_xor_sync(0xffffffff, l, 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        const float inverse = l == 0 ? 0 : 1 / l;
        log_sum[m][half] =
            l == 0 ? -INFINITY : max_[m][half] * factor_ * kLn2 + logf(l);
#pragma unroll
        for (int n = 0; n < kO; ++n) {
          o[m][n][2 * half] *= inverse;
          o[m][n][2 * half + 1] *= inverse;
        }
      }
    }
  }

 private:
  // Returns 2^(c (m - m')).
  template <int kN>
  __device__ __forceinline__ float UpdateRow(float (&s)[kN][4], int half,
                                             int m) {
    float& max = max_[m][half];
    const float before = max;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
    // A row that has seen no key yet: every exponential is then 2^-infinity.
    const float offset = max == -INFINITY ? 0 : max * factor_;
    const float decay = Exp2(before * factor_ - offset);
    float sum = sum_[m][half] * decay;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s[n][e] = Exp2(s[n][e] * factor_ - offset);
        sum += s[n][e];
      }
    }
    sum_[m][half] = sum;
    return decay;
  }

  const float factor_;
  float max_[kM][2], sum_[kM][2];
};

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_SCORES_CUH_
