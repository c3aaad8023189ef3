#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/flash_cuda/soft_cap.cuh"
#include "attention_backends/key_range.h"

// dQ: a CUDA block per query tile of each head steps over the key tiles that
// its queries see, in a fixed order, so that equal inputs give equal bits.

namespace tessera {
namespace flash {
namespace portable {

// The part that a CUDA block computes.
template <typename T>
struct QueryTile {
  HeadRows<T> q, d_o, k, v, dq;
  const RowStatistics* statistics;  // of the head's first query
  AttentionMask<int> mask;
  QueryRange<int> queries;
};

// The last query tile of a head comes first, as in the forward pass.
template <typename T, int kHeadDim>
__device__ __forceinline__ QueryTile<T> FindQueryTile(
    const BackwardParams& params, const BackwardScratch& scratch) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  const ForwardParams& p = params.forward;
  const int s = p.s, t = p.t, d = p.d, heads = p.h;
  const int query_tiles = CeilDiv(s, Tiles::kHeld);
  const int tile = query_tiles - 1 - blockIdx.x % query_tiles;
  const int head_of_all = blockIdx.x / query_tiles;
  const int head = head_of_all % heads, batch = head_of_all / heads;
  const int kv_head = head / (heads / static_cast<int>(p.g));
  const AttentionMask<int> mask = SequenceMask(p, batch);
  return {RowsOf<T>(p.q, batch, head, s, d),
          RowsOf<T>(params.d_o, batch, head, s, d),
          RowsOf<T>(p.k, batch, kv_head, t, d),
          RowsOf<T>(p.v, batch, kv_head, t, d),
          RowsOf<T>(params.dq, batch, head, s, d),
          scratch.statistics + static_cast<int64_t>(head_of_all) * s,
          mask,
          mask.QueriesFrom(tile * Tiles::kHeld, Tiles::kHeld)};
}

// Loads the statistics of a lane's rows, from `first_query` on.
template <typename T, int kM>
__device__ __forceinline__ void LoadStatistics(
    const QueryTile<T>& held, int first_query,
    RowStatistics (&statistics)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + 8 * half + Lane() / 4;
      statistics[m][half] = {0, 0};
      if (query < held.mask.s) {
        statistics[m][half] = held.statistics[query];
      }
    }
  }
}

// Starts copying the K and V of a step.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadKeys(const QueryTile<T>& held, int step) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kStreamed = Tiles::kStreamed;
  const BackwardMemory<Tiles> memory;
  const int stage = step % 2, first_key = step * kStreamed;
  LoadTile<kStreamed, kHeadDim, Tiles::kThreads>(memory.Streamed(stage, 0),
                                                 held.k, first_key);
  LoadTile<kStreamed, kHeadDim, Tiles::kThreads>(memory.Streamed(stage, 1),
                                                 held.v, first_key);
}

// Computes dS / scale of a warp's queries and the step's keys from `first_col`
// on.
template <typename T, int kHeadDim, bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void ComputeDs(
    const ForwardParams& params, const QueryTile<T>& held, int step,
    int first_col, float factor, const RowStatistics (&statistics)[kM][2],
    float (&ds)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kRowBytes = TileLayout<T, kHeadDim>::kRowBytes;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = step % 2, first_key = step * Tiles::kStreamed;
  const uint32_t held_rows = warp.row * kRowBytes,
                 streamed = first_col * kRowBytes;
  float p[kM][kN][4];
  MultiplyRows<T, kHeadDim>(memory.Held(0) + held_rows,
                            memory.Streamed(stage, 0) + streamed, p);
  ApplySoftCap<kSoftCap>(params, p);
  if (held.mask.NeedsMask(held.queries,
                          {first_key, first_key + Tiles::kStreamed})) {
    ApplyMask<false>(held.mask, held.queries.begin + warp.row,
                     first_key + first_col, p);
  }
  MultiplyRows<T, kHeadDim>(memory.Held(1) + held_rows,
                            memory.Streamed(stage, 1) + streamed, ds);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const RowStatistics& row = statistics[m][e / 2];
        ds[m][n][e] = Exp2(p[m][n][e] * factor + row.minus_lse) *
                      (ds[m][n][e] - row.delta) *
                      SoftCapSlope<kSoftCap>(p[m][n][e]);
      }
    }
  }
}

// A warp's share of one step: dQ += dS K.
template <typename T, int kHeadDim, bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void StepOverKeys(
    const ForwardParams& params, const QueryTile<T>& held, int step,
    float factor, const RowStatistics (&statistics)[kM][2],
    float (&dq)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kStreamed = Tiles::kStreamed, kSlice = Tiles::kSlice;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const uint32_t k_rows = memory.Streamed(step % 2, 0);
  float ds[kM][kSlice / 8][4];
  uint32_t a[kM][kSlice / kFragment<T>][4];
  if constexpr (Tiles::kSharesScores) {
    const int first_col = warp.column_warp * kSlice;
    ComputeDs<T, kHeadDim, kSoftCap>(params, held, step, first_col, factor,
                                     statistics, ds);
    PackFragments<T>(ds, a);
    StageFragments<T, kStreamed, 1>(memory.Ds(), warp.row, first_col / 16, a);
    __syncthreads();  // dS is written
    MultiplyTiles<T, kStreamed, kHeadDim, Tiles::kColumnWarps>(
        memory.Ds() + warp.row * TileLayout<T, kStreamed>::kRowBytes, k_rows,
        warp.column_warp, dq);
  } else {
#pragma unroll 1
    for (int slice = 0; slice < kStreamed; slice += kSlice) {
      ComputeDs<T, kHeadDim, kSoftCap>(params, held, step, slice, factor,
                                       statistics, ds);
      PackFragments<T>(ds, a);
      MultiplyInto<T, kHeadDim>(
          a, k_rows + slice * TileLayout<T, kHeadDim>::kRowBytes, dq);
    }
  }
}

template <typename T, int kHeadDim, bool kSoftCap>
__global__ void __launch_bounds__(BackwardTiles<kHeadDim, sizeof(T)>::kThreads)
    BackwardQueryKernel(const BackwardParams params,
                        const BackwardScratch scratch) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kM = Tiles::kRowBlocks;
  constexpr int kN = kHeadDim / 8 / Tiles::kColumnWarps;
  const QueryTile<T> held = FindQueryTile<T, kHeadDim>(params, scratch);
  const TileRange<int> tiles =
      TilesOf<Tiles::kStreamed>(held.mask.Keys(held.queries));
  const BackwardMemory<Tiles> memory;
  float dq[kM][kN][4];
  Clear(dq);
  if (tiles.end > tiles.begin) {
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(0), held.q,
                                                      held.queries.begin);
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(1), held.d_o,
                                                      held.queries.begin);
    LoadKeys<T, kHeadDim>(held, tiles.begin);
  }
  RowStatistics statistics[kM][2];
  LoadStatistics(held, held.queries.begin + BackwardWarp<Tiles>().row,
                 statistics);
  const float factor = ScoreScale<kSoftCap>(params.forward) * kLog2E;
  for (int step = tiles.begin; step < tiles.end; ++step) {
    WaitForCopies();
    __syncthreads();  // this step has arrived, the one before has been read
    if (step + 1 < tiles.end) LoadKeys<T, kHeadDim>(held, step + 1);
    StepOverKeys<T, kHeadDim, kSoftCap>(params.forward, held, step, factor,
                                        statistics, dq);
  }
  __syncthreads();  // Q has been read
  Scale(params.forward.scale, dq);
  StoreHeldRows<kHeadDim>(held.dq, held.queries.begin, memory.Held(0), dq);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_QUERY_KERNEL_CUH_
