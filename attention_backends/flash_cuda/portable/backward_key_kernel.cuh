#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/backward_dq_sums.cuh"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/flash_cuda/soft_cap.cuh"
#include "attention_backends/key_range.h"

// dK and dV: a CUDA block per key tile of each key head steps over the tiles of
// all queries that read the head, in a fixed order. Transposed scores S^T = K
// Q^T leave P^T and dS^T in registers exactly as dV = P^T dO and dK = dS^T Q
// need them. With kAddsDq every step also adds its part of dQ to sums in global
// memory, in no fixed order: five products instead of seven with a separate
// kernel for dQ.

namespace tessera {
namespace flash {
namespace portable {

// The part that a CUDA block computes.
template <typename T>
struct KeyTile {
  AttentionMask<int> mask;
  int batch, kv_head;
  int first_key;
  // The steps: query tiles [first_tile, first_tile + tiles) of each of the
  // `group` heads from `first_head` on.
  int first_head, group, first_tile, tiles;
};

template <typename T, int kHeadDim>
__device__ __forceinline__ KeyTile<T> FindKeyTile(const ForwardParams& p) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  const int t = p.t, heads = p.h, kv_heads = p.g;
  const int key_tiles = CeilDiv(t, Tiles::kHeld);
  const int head_of_all = blockIdx.x / key_tiles;
  const AttentionMask<int> mask = SequenceMask(p, head_of_all / kv_heads);
  KeyTile<T> held;
  held.mask = mask;
  held.batch = head_of_all / kv_heads;
  held.kv_head = head_of_all % kv_heads;
  held.first_key = blockIdx.x % key_tiles * Tiles::kHeld;
  held.group = heads / kv_heads;
  held.first_head = held.kv_head * held.group;
  const TileRange<int> tiles = TilesOf<Tiles::kStreamed>(
      mask.Queries(mask.KeysFrom(held.first_key, Tiles::kHeld)));
  held.first_tile = tiles.begin;
  // 0 or less if no query sees a key of the tile.
  held.tiles = tiles.end - tiles.begin;
  return held;
}

// A query tile over which a CUDA block steps. It is held in the stage of shared
// memory whose index is the step's, from 0, modulo 2.
struct QueryStep {
  int index, head, tile;

  __device__ __forceinline__ int Stage() const { return index % 2; }
  __device__ __forceinline__ int64_t HeadOfAll(const ForwardParams& p,
                                               int batch) const {
    return static_cast<int64_t>(batch) * p.h + head;
  }
};

template <typename T>
__device__ __forceinline__ QueryStep After(const QueryStep& step,
                                           const KeyTile<T>& held) {
  const bool same_head = step.tile + 1 < held.first_tile + held.tiles;
  return {step.index + 1, step.head + !same_head,
          same_head ? step.tile + 1 : held.first_tile};
}

// Starts copying the Q, dO and statistics of a step.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const BackwardParams& params,
                                            const BackwardScratch& scratch,
                                            const KeyTile<T>& held,
                                            const QueryStep& step) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kStreamed = Tiles::kStreamed;
  const ForwardParams& p = params.forward;
  const BackwardMemory<Tiles> memory;
  const int s = p.s, d = p.d, first = step.tile * kStreamed;
  const int stage = step.Stage();
  LoadTile<kStreamed, kHeadDim, Tiles::kThreads>(
      memory.Streamed(stage, 0), RowsOf<T>(p.q, held.batch, step.head, s, d),
      first);
  LoadTile<kStreamed, kHeadDim, Tiles::kThreads>(
      memory.Streamed(stage, 1),
      RowsOf<T>(params.d_o, held.batch, step.head, s, d), first);
  if (threadIdx.x < kStreamed) {
    const RowStatistics* const from =
        scratch.statistics + step.HeadOfAll(p, held.batch) * s;
    const int query = first + static_cast<int>(threadIdx.x);
    const bool exists = query < s;
    CopyOrZero8(memory.Statistics(stage) + threadIdx.x * 8,
                from + (exists ? query : 0), exists);
  }
}

// Turns scores into P^T, and dP^T into dS^T / scale. `statistics` is the
// address of the statistics of the first column's query.
template <bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void ToGradients(float factor, uint32_t statistics,
                                            float (&p)[kM][kN][4],
                                            float (&ds)[kM][kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    // Two queries' minus_lse and delta.
    const uint4 pair =
        LoadShared16(statistics + (8 * n + AccumulatorCol(Lane(), 0)) * 8);
    const float minus_lse[] = {__uint_as_float(pair.x),
                               __uint_as_float(pair.z)};
    const float delta[] = {__uint_as_float(pair.y), __uint_as_float(pair.w)};
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float slope = SoftCapSlope<kSoftCap>(p[m][n][e]);
        p[m][n][e] = Exp2(p[m][n][e] * factor + minus_lse[e % 2]);
        ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - delta[e % 2]) * slope;
      }
    }
  }
}

// A warp's rows of V, in registers if there is room for them.
template <typename T, int kHeadDim>
class WarpRowsOfV {
 public:
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;

  // Call when V has arrived.
  __device__ __forceinline__ void Load() {
    if constexpr (Tiles::kHoldsV) {
      const LaneAddress<T, kHeadDim> lane(Rows(), RowsFirst(Lane()));
#pragma unroll
      for (int k = 0; k < kHeadDim / kFragment<T>; ++k) {
#pragma unroll
        for (int m = 0; m < Tiles::kRowBlocks; ++m) {
          LoadMatrices(lane.At(16 * m, 2 * k), held_[k][m]);
        }
      }
    }
  }

  // c = V dO^T for the rows of dO from address `d_o` on.
  template <int kN>
  __device__ __forceinline__ void Multiply(
      uint32_t d_o, float (&c)[Tiles::kRowBlocks][kN][4]) const {
    if constexpr (Tiles::kHoldsV) {
      MultiplyRows<T, kHeadDim>(held_, d_o, c);
    } else {
      MultiplyRows<T, kHeadDim>(Rows(), d_o, c);
    }
  }

 private:
  __device__ __forceinline__ static uint32_t Rows() {
    return BackwardMemory<Tiles>().Held(1) +
           BackwardWarp<Tiles>().row * TileLayout<T, kHeadDim>::kRowBytes;
  }

  uint32_t held_[Tiles::kHoldsV ? kHeadDim / kFragment<T> : 1]
                [Tiles::kRowBlocks][4];
};

// Computes P^T and dS^T / scale of a warp's keys and the step's queries from
// `first_col` on.
template <typename T, int kHeadDim, bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void ComputeScores(
    const ForwardParams& params, const KeyTile<T>& held, const QueryStep& step,
    const WarpRowsOfV<T, kHeadDim>& v, int first_col, float (&p)[kM][kN][4],
    float (&ds)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kRowBytes = TileLayout<T, kHeadDim>::kRowBytes;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = step.Stage();
  const int first_query = step.tile * Tiles::kStreamed;
  const uint32_t streamed = first_col * kRowBytes;
  MultiplyRows<T, kHeadDim>(memory.Held(0) + warp.row * kRowBytes,
                            memory.Streamed(stage, 0) + streamed, p);
  ApplySoftCap<kSoftCap>(params, p);
  if (held.mask.NeedsMask({first_query, first_query + Tiles::kStreamed},
                          {held.first_key, held.first_key + Tiles::kHeld})) {
    ApplyMask<true>(held.mask, held.first_key + warp.row,
                    first_query + first_col, p);
  }
  v.Multiply(memory.Streamed(stage, 1) + streamed, ds);
  ToGradients<kSoftCap>(ScoreScale<kSoftCap>(params) * kLog2E,
                        memory.Statistics(stage) + first_col * 8, p, ds);
}

// A warp's share of one step: dK += dS^T Q, dV += P^T dO. With kStagesDs it
// leaves dS^T in shared memory, for dQ.
template <typename T, int kHeadDim, bool kSoftCap, bool kStagesDs, int kM,
          int kN>
__device__ __forceinline__ void StepOverQueries(
    const ForwardParams& params, const KeyTile<T>& held, const QueryStep& step,
    const WarpRowsOfV<T, kHeadDim>& v, float (&dk)[kM][kN][4],
    float (&dv)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kRowBytes = TileLayout<T, kHeadDim>::kRowBytes;
  constexpr int kSlice = Tiles::kSlice;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = step.Stage();
#pragma unroll 1
  for (int slice = 0; slice < Tiles::kStreamed; slice += kSlice) {
    float p[kM][kSlice / 8][4], ds[kM][kSlice / 8][4];
    ComputeScores<T, kHeadDim, kSoftCap>(params, held, step, v, slice, p, ds);
    uint32_t a[kM][kSlice / kFragment<T>][4];
    PackFragments<T>(p, a);
    MultiplyInto<T, kHeadDim>(a, memory.Streamed(stage, 1) + slice * kRowBytes,
                              dv);
    PackFragments<T>(ds, a);
    if (kStagesDs) {
      StageFragments<T, Tiles::kStreamed, 1>(memory.Ds(), warp.row, slice / 16,
                                             a);
    }
    MultiplyInto<T, kHeadDim>(a, memory.Streamed(stage, 0) + slice * kRowBytes,
                              dk);
  }
  if (kStagesDs) __syncthreads();  // dS is written
}

// StepOverQueries() for warps that share the scores.
template <typename T, int kHeadDim, bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void StepOverQueriesTogether(
    const ForwardParams& params, const KeyTile<T>& held, const QueryStep& step,
    const WarpRowsOfV<T, kHeadDim>& v, float (&dk)[kM][kN][4],
    float (&dv)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kStreamed = Tiles::kStreamed, kSlice = Tiles::kSlice;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int first_col = warp.column_warp * kSlice;
  float p[kM][kSlice / 8][4], ds[kM][kSlice / 8][4];
  ComputeScores<T, kHeadDim, kSoftCap>(params, held, step, v, first_col, p, ds);
  uint32_t staged[kM][kSlice / kFragment<T>][4];
  PackFragments<T>(p, staged);
  StageFragments<T, kStreamed, 1>(memory.P(), warp.row, first_col / 16, staged);
  PackFragments<T>(ds, staged);
  StageFragments<T, kStreamed, 1>(memory.Ds(), warp.row, first_col / 16,
                                  staged);
  __syncthreads();  // P and dS are written
  constexpr int kRowBytes = TileLayout<T, kStreamed>::kRowBytes;
  MultiplyTiles<T, kStreamed, kHeadDim, Tiles::kColumnWarps>(
      memory.P() + warp.row * kRowBytes, memory.Streamed(step.Stage(), 1),
      warp.column_warp, dv);
  MultiplyTiles<T, kStreamed, kHeadDim, Tiles::kColumnWarps>(
      memory.Ds() + warp.row * kRowBytes, memory.Streamed(step.Stage(), 0),
      warp.column_warp, dk);
}

template <typename T, int kHeadDim, bool kSoftCap, bool kAddsDq>
__global__ void __launch_bounds__(BackwardTiles<kHeadDim, sizeof(T)>::kThreads)
    BackwardKeyKernel(const BackwardParams params,
                      const BackwardScratch scratch) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kM = Tiles::kRowBlocks;
  constexpr int kN = kHeadDim / 8 / Tiles::kColumnWarps;
  const ForwardParams& p = params.forward;
  const KeyTile<T> held = FindKeyTile<T, kHeadDim>(p);
  const BackwardMemory<Tiles> memory;
  const auto rows = [&](const HeadView& view) {
    return RowsOf<T>(view, held.batch, held.kv_head, p.t, p.d);
  };

  const int steps = held.group * held.tiles;
  QueryStep step = {0, held.first_head, held.first_tile};
  if (steps > 0) {
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(0), rows(p.k),
                                                      held.first_key);
    LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(1), rows(p.v),
                                                      held.first_key);
    LoadQueries<T, kHeadDim>(params, scratch, held, step);
  }
  float dk[kM][kN][4], dv[kM][kN][4];
  Clear(dk);
  Clear(dv);
  WarpRowsOfV<T, kHeadDim> v;
  while (step.index < steps) {
    WaitForCopies();
    __syncthreads();  // this step has arrived, the one before has been read
    if (step.index == 0) v.Load();
    const QueryStep next = After(step, held);
    if (next.index < steps) {
      LoadQueries<T, kHeadDim>(params, scratch, held, next);
    }
    if constexpr (Tiles::kSharesScores) {
      StepOverQueriesTogether<T, kHeadDim, kSoftCap>(p, held, step, v, dk, dv);
    } else {
      StepOverQueries<T, kHeadDim, kSoftCap, kAddsDq>(p, held, step, v, dk, dv);
    }
    if constexpr (kAddsDq) {
      const int64_t query_tiles =
          CeilDiv(static_cast<int>(p.s), Tiles::kStreamed);
      const int64_t tile =
          step.HeadOfAll(p, held.batch) * query_tiles + step.tile;
      AddDq<T, kHeadDim>(scratch.dq_sums + tile * Tiles::kDqElements +
                         threadIdx.x);
    }
    step = next;
  }
  __syncthreads();  // K and V have been read
  Scale(p.scale, dk);
  StoreHeldRows<kHeadDim>(rows(params.dk), held.first_key, memory.Held(0), dk);
  StoreHeldRows<kHeadDim>(rows(params.dv), held.first_key, memory.Held(1), dv);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_
