#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_DQ_SUMS_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_DQ_SUMS_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/fragment_layout.h"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/key_range.h"

// dQ as sums in global memory, to which the CUDA blocks of all key tiles add.

namespace tessera {
namespace flash {
namespace portable {

// A warp's place in the grid of BackwardTiles::kDqColumnWarps columns.
template <typename T, int kHeadDim>
struct DqWarp {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  static constexpr int kRows = 16 * Tiles::kDqRowBlocks;

  int row = Warp() / Tiles::kDqColumnWarps * kRows;
  int column_warp = Warp() % Tiles::kDqColumnWarps;

  // With 80 columns the second warp has one pair fewer.
  __device__ __forceinline__ bool Has(int pair) const {
    constexpr bool kEven = kHeadDim / 16 % Tiles::kDqColumnWarps == 0;
    return kEven || pair * Tiles::kDqColumnWarps + column_warp < kHeadDim / 16;
  }
};

template <typename T, int kHeadDim>
using DqSums = float[BackwardTiles<kHeadDim, sizeof(T)>::kDqRowBlocks]
                    [2 * BackwardTiles<kHeadDim, sizeof(T)>::kDqPairs][4];

// The offset of a thread's sum from its first one, which is at the thread's
// index in the query tile's sums. A warp thus adds to 128 consecutive bytes.
template <typename T, int kHeadDim>
__device__ __forceinline__ constexpr int DqOffset(int m, int n, int e) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  return ((m * 2 * Tiles::kDqPairs + n) * 4 + e) * Tiles::kThreads;
}

// Adds dS K of the CUDA block's keys to one query tile's sums; dS^T and K are
// in shared memory. `sums` is the thread's first sum.
template <typename T, int kHeadDim>
__device__ __forceinline__ void AddDq(float* sums) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kM = Tiles::kDqRowBlocks, kStride = Tiles::kDqColumnWarps;
  const BackwardMemory<Tiles> memory;
  const DqWarp<T, kHeadDim> warp;
  const TransposedTile<T, Tiles::kStreamed, Operand::kA> a_tile(memory.Ds(),
                                                                warp.row / 16);
  const TransposedTile<T, kHeadDim, Operand::kB> b_tile(memory.Held(0),
                                                        warp.column_warp);
  DqSums<T, kHeadDim> c;
  Clear(c);
#pragma unroll
  for (int k = 0; k < Tiles::kHeld; k += kFragment<T>) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      a_tile.Load(k, m, a[m]);
    }
#pragma unroll
    for (int pair = 0; pair < Tiles::kDqPairs; ++pair) {
      if (!warp.Has(pair)) continue;
      uint32_t b[4];
      b_tile.Load(k, kStride * pair, b);
      MultiplyPair<T>(a, b, 2 * pair, c);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < 2 * Tiles::kDqPairs; ++n) {
      if (!warp.Has(n / 2)) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        atomicAdd(sums + DqOffset<T, kHeadDim>(m, n, e), c[m][n][e]);
      }
    }
  }
}

// Computes dQ = scale x the sums, with a CUDA block per query tile of each
// head.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(BackwardTiles<kHeadDim, sizeof(T)>::kThreads)
    BackwardPostprocessKernel(const BackwardParams params,
                              const BackwardScratch scratch) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kM = Tiles::kDqRowBlocks, kN = 2 * Tiles::kDqPairs;
  const ForwardParams& p = params.forward;
  const int s = p.s, heads = p.h;
  const int query_tiles = CeilDiv(s, Tiles::kStreamed);
  const int head_of_all = blockIdx.x / query_tiles;
  const float* const sums =
      scratch.dq_sums + static_cast<int64_t>(blockIdx.x) * Tiles::kDqElements +
      threadIdx.x;
  DqSums<T, kHeadDim> c;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        c[m][n][e] = p.scale * sums[DqOffset<T, kHeadDim>(m, n, e)];
      }
    }
  }
  const DqWarp<T, kHeadDim> warp;
  const uint32_t tile = SharedAddress(SharedMemory());
  uint32_t staged[kM][8 * kN / kFragment<T>][4];
  PackFragments<T>(c, staged);
  StageFragments<T, kHeadDim, Tiles::kDqColumnWarps>(tile, warp.row,
                                                     warp.column_warp, staged);
  __syncthreads();
  const HeadRows<T> dq =
      RowsOf<T>(params.dq, head_of_all / heads, head_of_all % heads, s, p.d);
  StoreTile<Tiles::kStreamed, kHeadDim, Tiles::kThreads>(
      dq, blockIdx.x % query_tiles * Tiles::kStreamed, tile, threadIdx.x);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_DQ_SUMS_CUH_
