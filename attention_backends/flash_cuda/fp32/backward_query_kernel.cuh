#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_scheduler.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/soft_cap.cuh"

// dQ: a CUDA block per query tile of each head steps over the key tiles that
// its queries see, in a fixed order, so that equal inputs give equal bits.

namespace tessera {
namespace flash {
namespace fp32 {

// Loads the statistics of a thread's rows, from `first_query` on.
template <int kM>
__device__ __forceinline__ void LoadStatistics(
    const RowStatistics* of_head, int first_query, int s,
    RowStatistics (&statistics)[kM]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    statistics[m] = {0, 0};
    if (first_query + m < s) statistics[m] = of_head[first_query + m];
  }
}

// Turns scores into P, and dP into dS / scale.
template <bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void ToQueryGradients(
    float scale, const RowStatistics (&statistics)[kM], float (&p)[kM][kN],
    float (&ds)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      ToGradients<kSoftCap>(scale, statistics[m], &p[m][n], &ds[m][n]);
    }
  }
}

template <typename Tiles, bool kSoftCap>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    BackwardQueryKernel(const BackwardParams params,
                        const RowStatistics* all_statistics) {
  constexpr int kM = Tiles::kRows, kN = Tiles::kCols;
  constexpr int kHeld = Tiles::kHeld, kStreamed = Tiles::kStreamed;
  const ForwardParams& p = params.forward;
  const QueryTile held = FindQueryTile<kHeld, kStreamed>(p);
  const BackwardMemory<Tiles> memory;
  const auto q = memory.Held(0), d_o = memory.Held(1);
  const auto k = memory.Streamed(0), v = memory.Streamed(1);
  const int d = p.d, row = FirstRow<kM>(), query = held.queries.begin + row;

  float dq[kM][Tiles::kHeadDim / kColLanes];
  Clear(dq);
  RowStatistics statistics[kM];
  LoadStatistics(all_statistics + held.lse_row, query, p.s, statistics);
  const TileRange<int> tiles = held.key_tiles;
  if (tiles.end > tiles.begin) {
    LoadTile<kHeld>(q, held.Queries<const float>(p.q, d), held.queries.begin);
    LoadTile<kHeld>(d_o, held.Queries<const float>(params.d_o, d),
                    held.queries.begin);
    LoadTile<kStreamed>(v, held.Keys(p.v, d), tiles.begin * kStreamed);
  }
  for (int step = tiles.begin; step < tiles.end; ++step) {
    const int first_key = step * kStreamed;
    float scores[kM][kN], ds[kM][kN];
    WaitForCopies();
    __syncthreads();  // V has arrived, the last K has been read
    LoadTile<kStreamed>(k, held.Keys(p.k, d), first_key);
    MultiplyRows(d_o, row, v, d, ds);
    WaitForCopies();
    __syncthreads();  // K has arrived, V has been read
    if (step + 1 < tiles.end) {
      LoadTile<kStreamed>(v, held.Keys(p.v, d), first_key + kStreamed);
    }
    MultiplyRows(q, row, k, d, scores);
    ApplySoftCap<kSoftCap>(p, scores);
    if (held.mask.NeedsMask(held.queries, {first_key, first_key + kStreamed})) {
      ApplyMask<false>(held.mask, query, first_key, scores);
    }
    ToQueryGradients<kSoftCap>(ScoreScale<kSoftCap>(p), statistics, scores, ds);
    StageRows(memory.Gradients(), row, ds);
    __syncwarp();
    MultiplyInto(memory.Gradients(), row, k, dq);
  }
  StoreRows(held.Queries<float>(params.dq, d), query, p.scale, dq);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_
