#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tasks.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// dQ, one block for each query tile of each head: it visits the key tiles that
// its queries see, in a fixed order, so that equal inputs give equal bits.

namespace tessera {
namespace flash {
namespace fp32 {

// Of a thread's rows, from `first_query` on.
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

// Scores become P and dP becomes dS / scale.
template <int kM, int kN>
__device__ __forceinline__ void ToQueryGradients(
    float scale, const RowStatistics (&statistics)[kM], float (&p)[kM][kN],
    float (&ds)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      ToGradients(scale, statistics[m], &p[m][n], &ds[m][n]);
    }
  }
}

template <typename Tiles>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    BackwardQueryKernel(const BackwardParams params,
                        const RowStatistics* all_statistics) {
  constexpr int kM = Tiles::kRows, kN = Tiles::kCols;
  constexpr int kHeld = Tiles::kHeld, kVisiting = Tiles::kVisiting;
  const ForwardParams& p = params.forward;
  const QueryTask task = FindQueryTask<kHeld, kVisiting>(p);
  const BackwardMemory<Tiles> memory;
  const auto q = memory.Held(0), d_o = memory.Held(1);
  const auto k = memory.Visiting(0), v = memory.Visiting(1);
  const int d = p.d, row = FirstRow<kM>(), query = task.queries.begin + row;

  float dq[kM][Tiles::kHeadDim / kColLanes];
  Clear(dq);
  RowStatistics statistics[kM];
  LoadStatistics(all_statistics + task.lse_row, query, p.s, statistics);
  const TileRange<int> tiles = task.key_tiles;
  if (tiles.end > tiles.begin) {
    LoadTile<kHeld>(q, task.Queries<const float>(p.q, d), task.queries.begin);
    LoadTile<kHeld>(d_o, task.Queries<const float>(params.d_o, d),
                    task.queries.begin);
    LoadTile<kVisiting>(v, task.Keys(p.v, d), tiles.begin * kVisiting);
  }
  for (int visit = tiles.begin; visit < tiles.end; ++visit) {
    const int first_key = visit * kVisiting;
    float scores[kM][kN], ds[kM][kN];
    portable::WaitForCopies();
    __syncthreads();  // V is there, K has been read
    LoadTile<kVisiting>(k, task.Keys(p.k, d), first_key);
    MultiplyRows(d_o, row, v, d, ds);
    portable::WaitForCopies();
    __syncthreads();  // K is there, V has been read
    if (visit + 1 < tiles.end) {
      LoadTile<kVisiting>(v, task.Keys(p.v, d), first_key + kVisiting);
    }
    MultiplyRows(q, row, k, d, scores);
    if (task.mask.NeedsMask(task.queries, {first_key, first_key + kVisiting})) {
      Hide<false>(task.mask, query, first_key, scores);
    }
    ToQueryGradients(p.scale, statistics, scores, ds);
    StageRows(memory.Gradients(), row, ds);
    __syncwarp();
    MultiplyInto(memory.Gradients(), row, k, dq);
  }
  StoreRows(task.Queries<float>(params.dq, d), query, p.scale, dq);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_QUERY_KERNEL_CUH_
