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

// c += a B^T for 16 columns: one step of the products below.
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
  const LaneAddress<kCols> a_lane(a, RowsFirst(Lane()));
  const LaneAddress<kCols> b_lane(b, ChunksFirst(Lane()));
  Clear(c);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
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
    const uint32_t (&a)[kCols / 16][kM][4], uint32_t b, float (&c)[kM][kN][4]) {
  const LaneAddress<kCols> b_lane(b, ChunksFirst(Lane()));
  Clear(c);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    MultiplyRowsStep<T>(a[k], b_lane, k, c);
  }
}

// c += a B for 16 rows of B, of which it takes every kStride-th pair of chunks:
// one step of the products below.
template <typename T, int kStride, int kM, int kN, typename Address>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&a)[kM][4],
                                             const Address& b, int row,
                                             float (&c)[kM][kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    uint32_t fb[4];
    LoadTransposed(b.At(row, n * kStride), fb);
    MultiplyPair<T>(a, fb, n, c);
  }
}

// c += A B: 16 kM x 16 kK in registers times 16 kK rows of a tile.
template <typename T, int kCols, int kM, int kK, int kN>
__device__ __forceinline__ void MultiplyInto(const uint32_t (&a)[kM][kK][4],
                                             uint32_t b,
                                             float (&c)[kM][kN][4]) {
  static_assert(kN * kChunk == kCols, "all columns");
  const LaneAddress<kCols> b_lane(b, RowsFirst(Lane()));
#pragma unroll
  for (int k = 0; k < kK; ++k) {
    uint32_t fa[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) fa[m][i] = a[m][k][i];
    }
    MultiplyStep<T, 1>(fa, b_lane, 16 * k, c);
  }
}

// c += A B with both in shared memory: 16 kM rows of a tile of kInner columns
// times kInner rows of another tile, of which `column_warp` takes every
// kStride-th pair of chunks.
template <typename T, int kInner, int kCols, int kStride, int kM, int kN>
__device__ __forceinline__ void MultiplyTiles(uint32_t a, uint32_t b,
                                              int column_warp,
                                              float (&c)[kM][kN][4]) {
  static_assert(kN * kStride * kChunk == kCols, "all columns, once");
  const LaneAddress<kInner> a_lane(a, RowsFirst(Lane()));
  const LaneAddress<kCols> b_lane(b, RowsFirst(Lane()), 2 * column_warp);
#pragma unroll
  for (int k = 0; k < kInner / 16; ++k) {
    uint32_t fa[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      LoadMatrices(a_lane.At(16 * m, 2 * k), fa[m]);
    }
    MultiplyStep<T, kStride>(fa, b_lane, 16 * k, c);
  }
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_MULTIPLY_CUH_
