#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_MULTIPLY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_MULTIPLY_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/instructions.cuh"
#include "attention_backends/flash_cuda/portable/tile.cuh"

// Products by a warp. Tiles are in shared memory, kCols wide; `a` and `b` are
// the addresses of their first rows.

namespace tessera {
namespace flash {
namespace portable {

template <int kM, int kN>
__device__ __forceinline__ void Clear(float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void Scale(float factor, float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] *= factor;
    }
  }
}

// Adds a b to two adjacent accumulators, the n-th and the next.
template <typename T, int kM, int kN>
__device__ __forceinline__ void MultiplyPair(const uint32_t (&a)[kM][4],
                                             const uint32_t (&b)[4], int n,
                                             float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    Mma<T>(c[m][n], a[m], b[0], b[1]);
    Mma<T>(c[m][n + 1], a[m], b[2], b[3]);
  }
}

// c += a B^T for the columns of a fragment: one step of the products below.
template <typename T, int kM, int kN, typename Address>
__device__ __forceinline__ void MultiplyRowsStep(const uint32_t (&a)[kM][4],
                                                 const Address& b, int k,
                                                 float (&c)[kM][kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t fb[4];
    LoadMatrices(b.At(8 * n, 2 * k), fb);
    MultiplyPair<T>(a, fb, n, c);
  }
}

// c = A B^T: dot products of 16 kM rows with 8 kN rows.
template <typename T, int kCols, int kM, int kN>
__device__ __forceinline__ void MultiplyRows(uint32_t a, uint32_t b,
                                             float (&c)[kM][kN][4]) {
  const LaneAddress<T, kCols> a_lane(a, RowsFirst(Lane()));
  const LaneAddress<T, kCols> b_lane(b, ChunksFirst(Lane()));
  Clear(c);
#pragma unroll
  for (int k = 0; k < kCols / kFragment<T>; ++k) {
    uint32_t fa[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      LoadMatrices(a_lane.At(16 * m, 2 * k), fa[m]);
    }
    MultiplyRowsStep<T>(fa, b_lane, k, c);
  }
}

// c = A B^T with A in registers.
template <typename T, int kCols, int kM, int kN>
__device__ __forceinline__ void MultiplyRows(
    const uint32_t (&a)[kCols / kFragment<T>][kM][4], uint32_t b,
    float (&c)[kM][kN][4]) {
  const LaneAddress<T, kCols> b_lane(b, ChunksFirst(Lane()));
  Clear(c);
#pragma unroll
  for (int k = 0; k < kCols / kFragment<T>; ++k) {
    MultiplyRowsStep<T>(a[k], b_lane, k, c);
  }
}

enum class Operand { kA, kB };

// A tile down whose rows the sum of a product runs, so that an operand has its
// columns as rows. Floats, which ldmatrix does not transpose, are loaded one by
// one, in the order of PackFragments(): the even rows first.
template <typename T, int kCols, Operand kOperand>
class TransposedTile {
 public:
  // `first_pair` shifts all pairs of 16 columns; the arguments of Load() must
  // not have its bits set.
  __device__ __forceinline__ explicit TransposedTile(uint32_t tile,
                                                     int first_pair = 0)
      : lanes_{AddressOf(tile, 0, first_pair), AddressOf(tile, 1, first_pair)} {
  }

  // Loads kFragment<T> rows: as one A operand of 16 columns, which begin at
  // column 16 pair, or as two B operands of 8 columns, which begin at 16 pair
  // and at 16 pair + 8.
  __device__ __forceinline__ void Load(int row, int pair,
                                       uint32_t (&r)[4]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int odd = kOperand == Operand::kA ? i / 2 : i % 2;
        const int half = kOperand == Operand::kA ? i % 2 : i / 2;
        r[i] = LoadShared4(lanes_[odd].At(row, 4 * pair + 2 * half));
      }
    } else {
      LoadTransposed(lanes_[0].At(row, 2 * pair), r);
    }
  }

 private:
  using Address = LaneAddress<T, kCols>;

  __device__ __forceinline__ static Address AddressOf(uint32_t tile, int odd,
                                                      int first_pair) {
    if constexpr (sizeof(T) == 4) {
      return Address(tile + Lane() / 4 % 4 * 4,
                     {Lane() % 4 * 2 + odd, Lane() / 16}, 4 * first_pair);
    } else {
      return Address(
          tile,
          kOperand == Operand::kA ? ChunksFirst(Lane()) : RowsFirst(Lane()),
          2 * first_pair);
    }
  }

  Address lanes_[2];  // of the even rows and, for floats, the odd ones
};

// c += a B for kFragment<T> rows of B, of which it takes every kStride-th pair:
// one step of the products below.
template <typename T, int kStride, int kM, int kN, typename Tile>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&a)[kM][4],
                                             const Tile& b, int row,
                                             float (&c)[kM][kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t fb[4];
    b.Load(row, n / 2 * kStride, fb);
    MultiplyPair<T>(a, fb, n, c);
  }
}

// c += A B: kK fragments side by side, as PackFragments() leaves them, times
// the rows of a tile.
template <typename T, int kCols, int kM, int kK, int kN>
__device__ __forceinline__ void MultiplyInto(const uint32_t (&a)[kM][kK][4],
                                             uint32_t b,
                                             float (&c)[kM][kN][4]) {
  static_assert(8 * kN == kCols, "all columns");
  const TransposedTile<T, kCols, Operand::kB> b_tile(b);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
    uint32_t fa[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fa[m][i] = a[m][k][i];
    }
    MultiplyStep<T, 1>(fa, b_tile, kFragment<T> * k, c);
  }
}

// c += A B with both in shared memory: 16 kM rows of a tile of kInner columns
// times kInner rows of another tile, of which `column_warp` takes every
// kStride-th pair of 16 columns. Of 16-bit elements.
template <typename T, int kInner, int kCols, int kStride, int kM, int kN>
__device__ __forceinline__ void MultiplyTiles(uint32_t a, uint32_t b,
                                              int column_warp,
                                              float (&c)[kM][kN][4]) {
  static_assert(8 * kN * kStride == kCols, "all columns, once");
  static_assert(sizeof(T) == 2, "A's columns are not permuted");
  const LaneAddress<T, kInner> a_lane(a, RowsFirst(Lane()));
  const TransposedTile<T, kCols, Operand::kB> b_tile(b, column_warp);
#pragma unroll
  for (int k = 0; k < kInner / 16; ++k) {
    uint32_t fa[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      LoadMatrices(a_lane.At(16 * m, 2 * k), fa[m]);
    }
    MultiplyStep<T, kStride>(fa, b_tile, 16 * k, c);
  }
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_MULTIPLY_CUH_
