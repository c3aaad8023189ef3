#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_DQ_SUMS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_DQ_SUMS_CUH_

#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// dQ as a sum in global memory, to which the warps of all key tiles add.

namespace tessera {
namespace flash {
namespace fp32 {

// The rectangles in which a warp computes its part of a step's dQ, summed over
// its own keys: each thread takes some of the streamed queries and of kColumns
// columns at a time.
template <typename Tiles>
struct DqTiles {
  static constexpr int kQueries = Tiles::kStreamed / kRowLanes;
  static constexpr int kColumns = Tiles::kHeadDim % 64 == 0 ? 64 : 32;
  static constexpr int kCols = kColumns / kColLanes;
  static constexpr int kKeys = kRowLanes * Tiles::kRows;
};

// c = dS K of a warp's keys; dS^T and K are in shared memory. `col` is the
// lane's first column.
template <typename Tiles, int kM, int kN>
__device__ __forceinline__ void MultiplyForDq(int col, float (&c)[kM][kN]) {
  using Sizes = DqTiles<Tiles>;
  static_assert(kM == 2 * kChunk, "two loads of dS^T");
  constexpr int kDsChunks = BackwardMemory<Tiles>::Scores::kChunks;
  constexpr int kKChunks = Tile<Tiles::kHeadDim>::kChunks;
  const BackwardMemory<Tiles> memory;
  const int first_key = Warp() * Sizes::kKeys, chunk = LaneRow(Lane()) * 2;
  Clear(c);
#pragma unroll 1
  for (int key = first_key; key < first_key + Sizes::kKeys; key += 4) {
    const float4* const low = memory.Gradients().At(key, chunk);
    const float4* const high = memory.Gradients().At(key, chunk + 1);
    const float4* const k = memory.Held(0).At(key, col / kChunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 ds[] = {low[i * kDsChunks], high[i * kDsChunks]};
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float4 of_k = k[i * kKChunks + n / kChunk * kColLanes];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          c[m][n] += Component(ds[m / kChunk], m % kChunk) *
                     Component(of_k, n % kChunk);
        }
      }
    }
  }
}

// Adds four adjacent numbers. Those of a warp fill whole sectors of 32 bytes,
// which compute capability 9.0 adds at once.
__device__ __forceinline__ void AtomicAdd(float* to, const float4& x) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(to), x);
#else
  atomicAdd(to, x.x);
  atomicAdd(to + 1, x.y);
  atomicAdd(to + 2, x.z);
  atomicAdd(to + 3, x.w);
#endif
}

// Adds scale dS K of a warp's keys to the rows of dQ from `first_query` on.
template <typename Tiles>
__device__ __forceinline__ void AddDq(const HeadRows<float>& dq,
                                      int first_query, float scale) {
  using Sizes = DqTiles<Tiles>;
  const int query = first_query + LaneRow(Lane()) * Sizes::kQueries;
#pragma unroll 1
  for (int first_col = 0; first_col < dq.cols; first_col += Sizes::kColumns) {
    const int col = first_col + ColumnOf(Lane(), 0);
    float c[Sizes::kQueries][Sizes::kCols];
    MultiplyForDq<Tiles>(col, c);
#pragma unroll
    for (int m = 0; m < Sizes::kQueries; ++m) {
      if (query + m >= dq.rows) break;
      float* const to = dq.data + (query + m) * dq.row_stride + col;
#pragma unroll
      for (int n = 0; n < Sizes::kCols; n += kChunk) {
        const int right = n / kChunk * kColLanes * kChunk;
        if (col + right >= dq.cols) break;
        AtomicAdd(to + right,
                  make_float4(scale * c[m][n], scale * c[m][n + 1],
                              scale * c[m][n + 2], scale * c[m][n + 3]));
      }
    }
  }
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_DQ_SUMS_CUH_
