#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_MULTIPLY_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_MULTIPLY_CUH_

#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// A thread's part of the product of tiles in shared memory: kM rows from `row`
// on and the columns of ColumnOf().

namespace tessera {
namespace flash {
namespace fp32 {

__device__ __forceinline__ float Component(const float4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// c = A B^T: dot products of rows of A with rows of B, over `cols` columns, a
// multiple of 8.
template <int kCols, int kM, int kN>
__device__ __forceinline__ void MultiplyRows(const Tile<kCols>& a, int row,
                                             const Tile<kCols>& b, int cols,
                                             float (&c)[kM][kN]) {
  constexpr int kChunks = Tile<kCols>::kChunks;
  Clear(c);
#pragma unroll 1
  for (int first = 0; first < cols / kChunk; first += 2) {
#pragma unroll
    for (int chunk = first; chunk < first + 2; ++chunk) {
      const float4* const b_rows = b.At(LaneCol(Lane()) * 4, chunk);
      float4 of_b[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        of_b[n] = b_rows[(n / 4 * 32 + n % 4) * kChunks];
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const float4 of_a = ChunkOf(a, row, m, chunk);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            c[m][n] += Component(of_a, i) * Component(of_b[n], i);
          }
        }
      }
    }
  }
}

// c += A B, over the kInner columns of A.
template <int kInner, int kCols, int kM, int kN>
__device__ __forceinline__ void MultiplyInto(const Tile<kInner>& a, int row,
                                             const Tile<kCols>& b,
                                             float (&c)[kM][kN]) {
  static_assert(kN * kColLanes == kCols, "all columns, once");
  constexpr int kChunks = Tile<kCols>::kChunks;
#pragma unroll 2
  for (int chunk = 0; chunk < kInner / kChunk; ++chunk) {
    const float4* const b_rows = b.At(chunk * 4, LaneCol(Lane()));
    float4 of_a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) of_a[m] = ChunkOf(a, row, m, chunk);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
#pragma unroll
      for (int n = 0; n < kN; n += kChunk) {
        const float4 of_b = b_rows[i * kChunks + n / kChunk * kColLanes];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int j = 0; j < kChunk; ++j) {
            c[m][n + j] += Component(of_a[m], i) * Component(of_b, j);
          }
        }
      }
    }
  }
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_MULTIPLY_CUH_
