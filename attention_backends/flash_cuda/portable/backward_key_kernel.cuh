#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/backward_dq_sums.cuh"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/key_range.h"

// dK and dV, one block for each key tile of each key head: it visits the tiles
// of all queries that read the head, in a fixed order. Transposed scores
// S^T = K Q^T leave P^T and dS^T in registers exactly as dV = P^T dO and
// dK = dS^T Q take them. With kAddsDq every visit also adds its part of dQ, in
// no fixed order, to sums in global memory: five products instead of the seven
// that a separate dQ kernel makes of it.

namespace tessera {
namespace flash {
namespace portable {

// What a block computes.
template <typename T>
struct KeyTask {
  AttentionMask<int> mask;
  int batch, kv_head;
  int first_key;
  // Visits: query tiles [first_tile, first_tile + tiles) of each of the
  // `group` heads from `first_head` on.
  int first_head, group, first_tile, tiles;
};

template <typename T, int kHeadDim>
__device__ __forceinline__ KeyTask<T> FindKeyTask(const ForwardParams& p) {
  using Tiles = BackwardTiles<kHeadDim>;
  const int s = p.s, t = p.t, heads = p.h, kv_heads = p.g;
  const AttentionMask<int> mask = {s, t, p.causal};
  const int key_tiles = CeilDiv(t, Tiles::kHeld);
  const int head_of_all = blockIdx.x / key_tiles;
  KeyTask<T> task;
  task.mask = mask;
  task.batch = head_of_all / kv_heads;
  task.kv_head = head_of_all % kv_heads;
  task.first_key = blockIdx.x % key_tiles * Tiles::kHeld;
  task.group = heads / kv_heads;
  task.first_head = task.kv_head * task.group;
  const TileRange<int> tiles =
      TilesOf<Tiles::kVisiting>(mask.Queries(task.first_key));
  task.first_tile = tiles.begin;
  task.tiles = tiles.end - tiles.begin;
  return task;
}

// A query tile that a block visits. The stage of shared memory that holds it is
// the visit's index, from 0, modulo 2.
struct QueryVisit {
  int index, head, tile;

  __device__ __forceinline__ int Stage() const { return index % 2; }
  __device__ __forceinline__ int64_t HeadOfAll(const ForwardParams& p,
                                               int batch) const {
    return static_cast<int64_t>(batch) * p.h + head;
  }
};

template <typename T>
__device__ __forceinline__ QueryVisit After(const QueryVisit& visit,
                                            const KeyTask<T>& task) {
  const bool same_head = visit.tile + 1 < task.first_tile + task.tiles;
  return {visit.index + 1, visit.head + !same_head,
          same_head ? visit.tile + 1 : task.first_tile};
}

// Starts copying the Q, dO and statistics of a visit.
template <typename T, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const BackwardParams& params,
                                            const BackwardScratch& scratch,
                                            const KeyTask<T>& task,
                                            const QueryVisit& visit) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kVisiting = Tiles::kVisiting;
  const ForwardParams& p = params.forward;
  const BackwardMemory<Tiles> memory;
  const int s = p.s, d = p.d, first = visit.tile * kVisiting;
  const int stage = visit.Stage();
  LoadTile<kVisiting, kHeadDim, Tiles::kThreads>(
      memory.Visiting(stage, 0), RowsOf<T>(p.q, task.batch, visit.head, s, d),
      first);
  LoadTile<kVisiting, kHeadDim, Tiles::kThreads>(
      memory.Visiting(stage, 1),
      RowsOf<T>(params.d_o, task.batch, visit.head, s, d), first);
  if (threadIdx.x < kVisiting) {
    const RowStatistics* const from =
        scratch.statistics + visit.HeadOfAll(p, task.batch) * s;
    const int query = first + static_cast<int>(threadIdx.x);
    const bool exists = query < s;
    CopyOrZero8(memory.Statistics(stage) + threadIdx.x * 8,
                from + (exists ? query : 0), exists);
  }
}

// Scores become P^T and dP^T becomes dS^T / scale. `statistics`: address of
// those of the first column's query.
template <int kM, int kN>
__device__ __forceinline__ void ToGradients(float factor, uint32_t statistics,
                                            float (&p)[kM][kN][4],
                                            float (&ds)[kM][kN][4]) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    // Two queries' minus_log_sum and row_sum.
    const uint4 pair =
        LoadShared16(statistics + (8 * n + AccumulatorCol(Lane(), 0)) * 8);
    const float minus_log_sum[] = {__uint_as_float(pair.x),
                                   __uint_as_float(pair.z)};
    const float row_sum[] = {__uint_as_float(pair.y), __uint_as_float(pair.w)};
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p[m][n][e] = Exp2(p[m][n][e] * factor + minus_log_sum[e % 2]);
        ds[m][n][e] = p[m][n][e] * (ds[m][n][e] - row_sum[e % 2]);
      }
    }
  }
}

// A warp's rows of V, in registers where there is room for them.
template <typename T, int kHeadDim>
class WarpRowsOfV {
 public:
  using Tiles = BackwardTiles<kHeadDim>;

  // When V has arrived.
  __device__ __forceinline__ void Load() {
    if constexpr (Tiles::kHoldsV) {
      const LaneAddress<kHeadDim> lane(Rows(), RowsFirst(Lane()));
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {
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
           BackwardWarp<Tiles>().row * TileLayout<kHeadDim>::kRowBytes;
  }

  uint32_t held_[Tiles::kHoldsV ? kHeadDim / 16 : 1][Tiles::kRowBlocks][4];
};

// P^T and dS^T / scale of a warp's keys with the visit's queries from
// `first_col` on.
template <typename T, int kHeadDim, int kM, int kN>
__device__ __forceinline__ void ComputeScores(
    const ForwardParams& params, const KeyTask<T>& task,
    const QueryVisit& visit, const WarpRowsOfV<T, kHeadDim>& v, int first_col,
    float (&p)[kM][kN][4], float (&ds)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kRowBytes = TileLayout<kHeadDim>::kRowBytes;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = visit.Stage();
  const int first_query = visit.tile * Tiles::kVisiting;
  const uint32_t visiting = first_col * kRowBytes;
  MultiplyRows<T, kHeadDim>(memory.Held(0) + warp.row * kRowBytes,
                            memory.Visiting(stage, 0) + visiting, p);
  if (task.mask.NeedsMask({first_query, first_query + Tiles::kVisiting},
                          {task.first_key, task.first_key + Tiles::kHeld})) {
    Hide<true>(task.mask, task.first_key + warp.row, first_query + first_col,
               p);
  }
  v.Multiply(memory.Visiting(stage, 1) + visiting, ds);
  ToGradients(params.scale * kLog2E, memory.Statistics(stage) + first_col * 8,
              p, ds);
}

// A warp's share of one visit: dK += dS^T Q, dV += P^T dO; leaves dS^T in
// shared memory where the block goes on to dQ.
template <typename T, int kHeadDim, bool kStagesDs, int kM, int kN>
__device__ __forceinline__ void VisitQueries(const ForwardParams& params,
                                             const KeyTask<T>& task,
                                             const QueryVisit& visit,
                                             const WarpRowsOfV<T, kHeadDim>& v,
                                             float (&dk)[kM][kN][4],
                                             float (&dv)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kRowBytes = TileLayout<kHeadDim>::kRowBytes;
  constexpr int kStep = Tiles::kStep;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int stage = visit.Stage();
#pragma unroll 1
  for (int step = 0; step < Tiles::kVisiting; step += kStep) {
    float p[kM][kStep / 8][4], ds[kM][kStep / 8][4];
    ComputeScores<T, kHeadDim>(params, task, visit, v, step, p, ds);
    uint32_t a[kM][kStep / 16][4];
    PackFragments<T>(p, a);
    MultiplyInto<T, kHeadDim>(a, memory.Visiting(stage, 1) + step * kRowBytes,
                              dv);
    PackFragments<T>(ds, a);
    if (kStagesDs) {
      StageFragments<Tiles::kVisiting, 1>(memory.Ds(), warp.row, step / kChunk,
                                          a);
    }
    MultiplyInto<T, kHeadDim>(a, memory.Visiting(stage, 0) + step * kRowBytes,
                              dk);
  }
  if (kStagesDs) __syncthreads();  // dS is there
}

// The same where warps share the scores.
template <typename T, int kHeadDim, int kM, int kN>
__device__ __forceinline__ void VisitQueriesTogether(
    const ForwardParams& params, const KeyTask<T>& task,
    const QueryVisit& visit, const WarpRowsOfV<T, kHeadDim>& v,
    float (&dk)[kM][kN][4], float (&dv)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kVisiting = Tiles::kVisiting, kStep = Tiles::kStep;
  const BackwardMemory<Tiles> memory;
  const BackwardWarp<Tiles> warp;
  const int first_col = warp.column_warp * kStep;
  float p[kM][kStep / 8][4], ds[kM][kStep / 8][4];
  ComputeScores<T, kHeadDim>(params, task, visit, v, first_col, p, ds);
  uint32_t staged[kM][kStep / 16][4];
  PackFragments<T>(p, staged);
  StageFragments<kVisiting, 1>(memory.P(), warp.row, first_col / kChunk,
                               staged);
  PackFragments<T>(ds, staged);
  StageFragments<kVisiting, 1>(memory.Ds(), warp.row, first_col / kChunk,
                               staged);
  __syncthreads();  // P and dS are there
  constexpr int kRowBytes = TileLayout<kVisiting>::kRowBytes;
  MultiplyTiles<T, kVisiting, kHeadDim, Tiles::kColumnWarps>(
      memory.P() + warp.row * kRowBytes, memory.Visiting(visit.Stage(), 1),
      warp.column_warp, dv);
  MultiplyTiles<T, kVisiting, kHeadDim, Tiles::kColumnWarps>(
      memory.Ds() + warp.row * kRowBytes, memory.Visiting(visit.Stage(), 0),
      warp.column_warp, dk);
}

template <typename T, int kHeadDim, bool kAddsDq>
__global__ void __launch_bounds__(BackwardTiles<kHeadDim>::kThreads)
    BackwardKeyKernel(const BackwardParams params,
                      const BackwardScratch scratch) {
  using Tiles = BackwardTiles<kHeadDim>;
  constexpr int kM = Tiles::kRowBlocks;
  constexpr int kN = kHeadDim / 8 / Tiles::kColumnWarps;
  const ForwardParams& p = params.forward;
  const KeyTask<T> task = FindKeyTask<T, kHeadDim>(p);
  const BackwardMemory<Tiles> memory;
  const auto rows = [&](const HeadView& view) {
    return RowsOf<T>(view, task.batch, task.kv_head, p.t, p.d);
  };

  LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(0), rows(p.k),
                                                    task.first_key);
  LoadTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(memory.Held(1), rows(p.v),
                                                    task.first_key);
  QueryVisit visit = {0, task.first_head, task.first_tile};
  LoadQueries<T, kHeadDim>(params, scratch, task, visit);
  float dk[kM][kN][4], dv[kM][kN][4];
  Clear(dk);
  Clear(dv);
  WarpRowsOfV<T, kHeadDim> v;
  const int visits = task.group * task.tiles;
  while (visit.index < visits) {
    WaitForCopies();
    __syncthreads();  // this visit is there, the one before has been read
    if (visit.index == 0) v.Load();
    const QueryVisit next = After(visit, task);
    if (next.index < visits) {
      LoadQueries<T, kHeadDim>(params, scratch, task, next);
    }
    if constexpr (Tiles::kSharesScores) {
      VisitQueriesTogether<T, kHeadDim>(p, task, visit, v, dk, dv);
    } else {
      VisitQueries<T, kHeadDim, kAddsDq>(p, task, visit, v, dk, dv);
    }
    if constexpr (kAddsDq) {
      const int64_t query_tiles =
          CeilDiv(static_cast<int>(p.s), Tiles::kVisiting);
      const int64_t tile =
          visit.HeadOfAll(p, task.batch) * query_tiles + visit.tile;
      AddDq<T, kHeadDim>(scratch.dq_sums + tile * Tiles::kDqElements +
                         threadIdx.x);
    }
    visit = next;
  }
  __syncthreads();  // K and V have been read
  Scale(p.scale, dk);
  StoreHeldRows<kHeadDim>(rows(params.dk), task.first_key, memory.Held(0), dk);
  StoreHeldRows<kHeadDim>(rows(params.dv), task.first_key, memory.Held(1), dv);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_KEY_KERNEL_CUH_
