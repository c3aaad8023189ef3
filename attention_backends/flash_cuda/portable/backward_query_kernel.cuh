#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/key_range.h"

// dQ, one block for each query tile of each head: it visits the key tiles that
// its queries see, in a fixed order, so that equal inputs give equal bits.

namespace tessera {
namespace flash {
namespace portable {

// What a block computes.
template <typename T>
struct QueryTask {
  HeadRows<T> q, d_o, k, v, dq;
  const RowStatistics* statistics;  // of the head's first query
  AttentionMask<int> mask;
  QueryRange<int> queries;
};

// As in the forward pass, the last query tile of a head comes first.
template <typename T, int kHeadDim>
__device__ __forceinline__ QueryTask<T> FindQueryTask(
    const BackwardParams& params, const BackwardScratch& scratch) {
  using Tiles = BackwardTiles<kHeadDim>;
  const ForwardParams& p = params.forward;
  const int s = p.s, t = p.t, d = p.d, heads = p.h;
  const int query_tiles = CeilDiv(s, Tiles::kHeld);
  const int tile = query_tiles - 1 - blockIdx.x % query_tiles;
  const int head_of_all = blockIdx.x / query_tiles;
  const int head = head_of_all % heads, batch = head_of_all / heads;
  const int kv_head = head / (heads / static_cast<int>(p.g));
  const AttentionMask<int> mask = {s, t, p.causal};
  return {RowsOf<T>(p.q, batch, head, s, d),
          RowsOf<T>(params.d_o, batch, head, s, d),
          RowsOf<T>(p.k, batch, kv_head, t, d),
          RowsOf<T>(p.v, batch, kv_head, t, d),
          RowsOf<T>(params.dq, batch, head, s, d),
          scratch.statistics + static_cast<int64_t>(head_of_all) * s,
          mask,
          mask.QueriesFrom(tile * Tiles::kHeld, Tiles::kHeld)};
}

// The statistics of a lane's rows, from `first_query` on.
template <typename T, int kM>
__device__ __forceinline__ void LoadStatistics(
    const QueryTask<T>& task, int first_query,
    RowStatistics (&statistics)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + 8 * half + Lane() / 4;
      statistics[m][half] = {0, 0};
      if (query < task.mask.s) {
        statistics[m][half] = task.statistics[query];
      }
    }
  }
}

// Starts copying the K and V of a visit.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadKeys(const QueryTask<T>& task, int visit) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kVisiting = Tiles::kVisiting;
  const BackwardMemory<Tiles> memory;
  const int stage = visit % 2, first_key = visit * kVisiting;
  LoadTile<kVisiting, kHeadDim, Tiles::kThreads>(memory.Visiting(stage, 0),
                                                 task.k, first_key);
  LoadTile<kVisiting, kHeadDim, Tiles::kThreads>(memory.Visiting(stage, 1),
                                                 task.v, first_key);
}

// dS / scale of a warp's queries with the visit's keys from `first_col` on.
template <typename T, int kHeadDim, int kM, int kN>
__device__ __forceinline__ void ComputeDs(
    const QueryTask<T>& task, int visit, int first_col, float factor,
    const RowStatistics (&statistics)[kM][2], float (&ds)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kRowBytes = TileLayout<kHeadDim>::kRowBytes;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = visit % 2, first_key = visit * Tiles::kVisiting;
  const uint32_t held = warp.row * kRowBytes, visiting = first_col * kRowBytes;
  float p[kM][kN][4];
  MultiplyRows<T, kHeadDim>(memory.Held(0) + held,
                            memory.Visiting(stage, 0) + visiting, p);
  if (task.mask.NeedsMask(task.queries,
                          {first_key, first_key + Tiles::kVisiting})) {
    Hide<false>(task.mask, task.queries.begin + warp.row, first_key + first_col,
                p);
  }
  MultiplyRows<T, kHeadDim>(memory.Held(1) + held,
                            memory.Visiting(stage, 1) + visiting, ds);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowStatistics& row = statistics[m][e / 2];
        ds[m][n][e] = Exp2(p[m][n][e] * factor + row.minus_log_sum) *
                      (ds[m][n][e] - row.row_sum);
      }
    }
  }
}

// A warp's share of one visit: dQ += dS K.
template <typename T, int kHeadDim, int kM, int kN>
__device__ __forceinline__ void VisitKeys(
    const QueryTask<T>& task, int visit, float factor,
    const RowStatistics (&statistics)[kM][2], float (&dq)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kVisiting = Tiles::kVisiting, kStep = Tiles::kStep;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const uint32_t k_rows = memory.Visiting(visit % 2, 0);
  float ds[kM][kStep / 8][4];
  uint32_t a[kM][kStep / 16][4];
  if constexpr (Tiles::kSharesScores) {
    const int first_col = warp.column_warp * kStep;
    ComputeDs<T, kHeadDim>(task, visit, first_col, factor, statistics, ds);
    PackFragments<T>(ds, a);
    StageFragments<kVisiting, 1>(memory.Ds(), warp.row, first_col / kChunk, a);
    __syncthreads();  // dS is there
    MultiplyTiles<T, kVisiting, kHeadDim, Tiles::kColumnWarps>(
        memory.Ds() + warp.row * TileLayout<kVisiting>::kRowBytes, k_rows,
        warp.column_warp, dq);
  } else {
#pragma unroll 1
    for (int step = 0; step < kVisiting; step += kStep) {
      ComputeDs<T, kHeadDim>(task, visit, step, factor, statistics, ds);
      PackFragments<T>(ds, a);
      MultiplyInto<T, kHeadDim>(
          a, k_rows + step * TileLayout<kHeadDim>::kRowBytes, dq);
    }
  }
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(BackwardTiles<kHeadDim>::kThreads)
    BackwardQueryKernel(const BackwardParams params,
                        const BackwardScratch scratch) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kM = Tiles::kRowBlocks;
  constexpr int kN = kHeadDim / 8 / Tiles::kColumnWarps;
  const QueryTask<T> task = FindQueryTask<T, kHeadDim>(params, scratch);
  const TileRange<int> tiles =
      TilesOf<Tiles::kVisiting>(task.mask.Keys(task.queries));
  const BackwardMemory<Tiles> memory;
  float dq[kM][kN][4];
  Clear(dq);
  if (tiles.end > tiles.begin) {
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(0), task.q,
                                                      task.queries.begin);
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(1), task.d_o,
                                                      task.queries.begin);
    LoadKeys<T, kHeadDim>(task, tiles.begin);
  }
  RowStatistics statistics[kM][2];
  LoadStatistics(task, task.queries.begin + BackwardWarp<Tiles>().row,
                 statistics);
  const float factor = params.forward.scale * kLog2E;
  for (int visit = tiles.begin; visit < tiles.end; ++visit) {
    WaitForCopies();
    __syncthreads();  // this visit is there, the one before has been read
    if (visit + 1 < tiles.end) LoadKeys<T, kHeadDim>(task, visit + 1);
    VisitKeys<T, kHeadDim>(task, visit, factor, statistics, dq);
  }
  __syncthreads();  // Q has been read
  Scale(params.forward.scale, dq);
  StoreHeldRows<kHeadDim>(task.dq, task.queries.begin, memory.Held(0), dq);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_
