#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/head_rows.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/instructions.cuh"

// Moves tiles between global memory, shared memory and registers. An operand
// fragment is uint32_t[4], 16 x kFragment<T> elements of T over a warp; an
// accumulator is float[4], 16 x 8.

namespace tessera {
namespace flash {
namespace portable {

// How kThreads threads share a tile of kRows x kCols: each takes one chunk, or
// every kChunkStep-th, of every kRowStep-th row.
template <typename T, int kRows, int kCols, int kThreads>
struct TileShare {
  using Layout = TileLayout<T, kCols>;
  // Adjacent threads take adjacent chunks, the largest power of two up to 16
  // that divides a row. Threads for which a tile has no row take other chunks.
  static constexpr int kSideBySide =
      Layout::kChunks % 16 == 0 ? 16 : Layout::kChunks & -Layout::kChunks;
  static constexpr int kRowStep =
      kThreads / kSideBySide < kRows ? kThreads / kSideBySide : kRows;
  static constexpr int kChunkStep = kThreads / kRowStep;

  int row, chunk;  // the thread's first

  __device__ __forceinline__ explicit TileShare(unsigned thread)
      : row(thread / kSideBySide % kRowStep),
        chunk(thread % kSideBySide +
              thread / (kSideBySide * kRowStep) * kSideBySide) {}
};

// Starts copying kRows x kCols from `first_row` on; rows and columns that do
// not exist become zeros.
template <int kRows, int kCols, int kThreads, typename T>
__device__ __forceinline__ void LoadTile(uint32_t tile, const HeadRows<T>& from,
                                         int first_row) {
  using Layout = TileLayout<T, kCols>;
  using Share = TileShare<T, kRows, kCols, kThreads>;
  static_assert(Share::kRowStep % 8 == 0,
                "all rows of a thread have the same permutation");
  const Share share(threadIdx.x);
  const uint32_t to = tile + Layout::Offset(share.row, share.chunk);
  const int rows = from.rows - first_row - share.row;
  const T* row = from.data + (first_row + share.row) * from.row_stride +
                 share.chunk * kChunk<T>;
#pragma unroll
  for (int i = 0; i < kRows; i += Share::kRowStep) {
#pragma unroll
    for (int j = 0; j < Layout::kChunks; j += Share::kChunkStep) {
      const int chunk = share.chunk + j;
      if (Layout::kChunks % Share::kChunkStep != 0 && chunk >= Layout::kChunks)
        break;
      CopyOrZero16(to + i * Layout::kRowBytes + j * kChunkBytes,
                   row + j * kChunk<T>,
                   i < rows && chunk * kChunk<T> < from.cols);
    }
    row += Share::kRowStep * from.row_stride;
  }
}

// Writes the rows and columns of a staged tile that exist; `thread` is one of
// kThreads.
template <int kRows, int kCols, int kThreads, typename T>
__device__ __forceinline__ void StoreTile(const HeadRows<T>& to, int first_row,
                                          uint32_t tile, int thread) {
  using Layout = TileLayout<T, kCols>;
  using Share = TileShare<T, kRows, kCols, kThreads>;
  const Share share(thread);
#pragma unroll
  for (int i = 0; i < kRows; i += Share::kRowStep) {
    const int row = share.row + i;
    if (first_row + row >= to.rows) break;
    T* const target = to.data + (first_row + row) * to.row_stride;
#pragma unroll
    for (int chunk = share.chunk; chunk < Layout::kChunks;
         chunk += Share::kChunkStep) {
      if (chunk * kChunk<T> >= to.cols) break;
      *reinterpret_cast<uint4*>(target + chunk * kChunk<T>) =
          LoadShared16(tile + Layout::Offset(row, chunk));
    }
  }
}

// Rounds accumulators to T, as operand fragments. Two 16-bit accumulators side
// by side have exactly an operand's layout. One of floats has that of an
// operand whose columns are permuted: the even ones first. MultiplyInto() reads
// the rows of the other operand in the same order.
template <typename T, int kM, int kN>
__device__ __forceinline__ void PackFragments(
    const float (&c)[kM][kN][4], uint32_t (&a)[kM][8 * kN / kFragment<T>][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          a[m][n][e % 2 * 2 + e / 2] = __float_as_uint(c[m][n][e]);
        }
      } else {
        a[m][n / 2][n % 2 * 2] = Pack<T>(c[m][n][0], c[m][n][1]);
        a[m][n / 2][n % 2 * 2 + 1] = Pack<T>(c[m][n][2], c[m][n][3]);
      }
    }
  }
}

// Writes packed accumulators to a tile in shared memory. They come in pairs of
// 16 columns: pair k goes to the columns of the (first_pair + k kStride)-th.
template <typename T, int kCols, int kStride, int kM, int kK>
__device__ __forceinline__ void StageFragments(uint32_t tile, int first_row,
                                               int first_pair,
                                               const uint32_t (&a)[kM][kK][4]) {
  using Layout = TileLayout<T, kCols>;
  constexpr int kPerPair = 16 / kFragment<T>;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      const int pair = first_pair + k / kPerPair * kStride;
      if (16 * kStride * (kK / kPerPair) > kCols && 16 * pair >= kCols) break;
      const int chunk = 16 / kChunk<T> * pair + k % kPerPair * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + 16 * m + Lane() / 4 + i % 2 * 8;
        // The place of a 16-bit pair, or of a float in the permuted order.
        const int place =
            sizeof(T) == 4 ? Lane() % 4 * 2 + i / 2 : i / 2 * 4 + Lane() % 4;
        StoreShared(
            tile + Layout::Offset(row, chunk + place / 4) + place % 4 * 4,
            a[m][k][i]);
      }
    }
  }
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_TILE_CUH_
