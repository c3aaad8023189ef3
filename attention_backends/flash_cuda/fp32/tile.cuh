#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/head_rows.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"

// Tiles in global memory, shared memory and registers, and moves between them.
// A thread's rectangle of a result is float[kM][kN]: adjacent rows, and the
// columns of ColumnOf().

namespace tessera {
namespace flash {
namespace fp32 {

__device__ __forceinline__ float* SharedFloats() {
  return reinterpret_cast<float*>(SharedMemory());
}

// A tile in shared memory.
template <int kCols>
class Tile {
 public:
  static constexpr int kChunks = TileLayout<kCols>::kChunks;

  __device__ __forceinline__ explicit Tile(float* data)
      : chunks_(reinterpret_cast<float4*>(data)) {}

  // The chunk 32 columns to the right is 8 further. If `row` is a multiple of
  // 4, the same chunk of each of the next three rows is kChunks further. A loop
  // over these computes one address.
  __device__ __forceinline__ float4* At(int row, int chunk) const {
    return chunks_ + TileLayout<kCols>::Index(row, chunk);
  }

 private:
  float4* chunks_;
};

// A chunk of row `m` of a thread's rectangle. The rectangle's first row, `row`,
// is a multiple of 4, or of 2 if it has two rows.
template <int kCols>
__device__ __forceinline__ float4& ChunkOf(const Tile<kCols>& tile, int row,
                                           int m, int chunk) {
  return tile.At(row + m / 4 * 4, chunk)[m % 4 * Tile<kCols>::kChunks];
}

// The first row of a thread's rectangle of kM rows in the CUDA block's tile.
template <int kM>
__device__ __forceinline__ int FirstRow() {
  return (Warp() * kRowLanes + LaneRow(Lane())) * kM;
}

template <int kM, int kN>
__device__ __forceinline__ void Clear(float (&c)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) c[m][n] = 0;
  }
}

// Starts copying kRows rows from `first_row` on; rows that do not exist become
// zeros. Columns that do not exist keep their contents: no sum runs over them,
// and no product with them is stored. Eight lanes copy 128 bytes of a row.
template <int kRows, int kCols>
__device__ __forceinline__ void LoadTile(const Tile<kCols>& tile,
                                         const HeadRows<const float>& from,
                                         int first_row) {
  constexpr int kLanes = 8, kRowStep = kThreads / kLanes;
  static_assert(kRows % kRowStep == 0, "all threads copy equally much");
  const int first = threadIdx.x / kLanes, first_chunk = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kRows; i += kRowStep) {
    const int row = first_row + first + i;
    const bool exists = row < from.rows;
    const float* const source =
        from.data + (exists ? row : 0) * from.row_stride + first_chunk * kChunk;
    const uint32_t target = SharedAddress(tile.At(first + i, first_chunk));
#pragma unroll
    for (int chunk = 0; chunk < Tile<kCols>::kChunks; chunk += kLanes) {
      if ((first_chunk + chunk) * kChunk >= from.cols) break;
      CopyOrZero16(target + chunk * sizeof(float4), source + chunk * kChunk,
                   exists);
    }
  }
}

// Writes a thread's rectangle to a tile in shared memory, at `row`.
template <int kCols, int kM, int kN>
__device__ __forceinline__ void StageRows(const Tile<kCols>& tile, int row,
                                          const float (&c)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; n += kChunk) {
      ChunkOf(tile, row, m, LaneCol(Lane()) + n / kChunk * kColLanes) =
          make_float4(c[m][n], c[m][n + 1], c[m][n + 2], c[m][n + 3]);
    }
  }
}

// Writes the existing rows and columns of factor times a thread's rectangle,
// whose first row is `row`.
template <int kM, int kN>
__device__ __forceinline__ void StoreRows(const HeadRows<float>& to, int row,
                                          float factor,
                                          const float (&c)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    if (row + m >= to.rows) break;
    float* const target = to.data + (row + m) * to.row_stride;
#pragma unroll
    for (int n = 0; n < kN; n += kChunk) {
      const int col = ColumnOf(Lane(), n);
      if (col >= to.cols) break;
      *reinterpret_cast<float4*>(target + col) =
          make_float4(factor * c[m][n], factor * c[m][n + 1],
                      factor * c[m][n + 2], factor * c[m][n + 3]);
    }
  }
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_CUH_
