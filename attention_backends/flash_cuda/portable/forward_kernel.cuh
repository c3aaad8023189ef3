#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FORWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FORWARD_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/multiply.cuh"
#include "attention_backends/flash_cuda/portable/scores.cuh"
#include "attention_backends/flash_cuda/portable/tile.cuh"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"
#include "attention_backends/flash_cuda/soft_cap.cuh"
#include "attention_backends/key_range.h"

// O = softmax(scale Q K^T + M) V with a CUDA block per query tile of each head:
// FlashAttention-2 (Dao, arXiv:2307.08691), Algorithm 1.

namespace tessera {
namespace flash {
namespace portable {

// The part that a CUDA block computes.
template <typename T>
struct ForwardTile {
  HeadRows<T> q, k, v, o;
  float* lse;  // of the head's first query
  AttentionMask<int> mask;
  QueryRange<int> queries;
  TileRange<int> key_tiles;  // stepped over from last to first
};

// CUDA blocks take the query tiles of a head from last to first: under a causal
// mask the long ones start early.
template <typename T, int kHeadDim>
__device__ __forceinline__ ForwardTile<T> FindForwardTile(
    const ForwardParams& p) {
  using Tiles = ForwardTiles<kHeadDim, sizeof(T)>;
  const int s = p.s, t = p.t, d = p.d, heads = p.h;
  const int query_tiles = CeilDiv(s, Tiles::kQueries);
  const int tile = query_tiles - 1 - blockIdx.x % query_tiles;
  const int head_of_all = blockIdx.x / query_tiles;
  const int head = head_of_all % heads, batch = head_of_all / heads;
  const int kv_head = head / (heads / static_cast<int>(p.g));
  const AttentionMask<int> mask = SequenceMask(p, batch);
  const QueryRange<int> queries =
      mask.QueriesFrom(tile * Tiles::kQueries, Tiles::kQueries);
  return {RowsOf<T>(p.q, batch, head, s, d),
          RowsOf<T>(p.k, batch, kv_head, t, d),
          RowsOf<T>(p.v, batch, kv_head, t, d),
          RowsOf<T>(p.o, batch, head, s, d),
          p.lse + static_cast<int64_t>(head_of_all) * s,
          mask,
          queries,
          TilesOf<Tiles::kKeys>(mask.Keys(queries))};
}

// Writes a warp's rows of L and O, the latter by way of its rows of Q's tile,
// which no other warp reads.
template <typename T, int kHeadDim, int kM, int kN>
__device__ __forceinline__ void StoreForward(const ForwardTile<T>& held,
                                             uint32_t q_tile,
                                             const float (&o)[kM][kN][4],
                                             const float (&lse)[kM][2]) {
  const int row = Warp() * 16 * kM;
  uint32_t staged[kM][8 * kN / kFragment<T>][4];
  PackFragments<T>(o, staged);
  const uint32_t rows = q_tile + row * TileLayout<T, kHeadDim>::kRowBytes;
  StageFragments<T, kHeadDim, 1>(rows, 0, 0, staged);
  __syncwarp();
  const int first_query = held.queries.begin + row;
  StoreTile<16 * kM, kHeadDim, 32>(held.o, first_query, rows, Lane());
  if (Lane() % 4 != 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + 8 * half + Lane() / 4;
      if (query < held.mask.s) held.lse[query] = lse[m][half];
    }
  }
}

template <typename T, int kHeadDim, bool kSoftCap>
__global__ void __launch_bounds__(ForwardTiles<kHeadDim, sizeof(T)>::kThreads)
    ForwardKernel(const ForwardParams params) {
  using Tiles = ForwardTiles<kHeadDim, sizeof(T)>;
  constexpr int kM = Tiles::kRowBlocks, kKeys = Tiles::kKeys;
  const ForwardTile<T> held = FindForwardTile<T, kHeadDim>(params);
  const uint32_t q_tile = SharedAddress(SharedMemory());
  const uint32_t k_tile = q_tile + Tiles::kQBytes;
  const uint32_t v_tile = k_tile + Tiles::kKBytes;
  const int row = Warp() * 16 * kM;
  const uint32_t q_rows = q_tile + row * TileLayout<T, kHeadDim>::kRowBytes;
  const auto load = [](uint32_t to, const HeadRows<T>& from, int tile) {
    LoadTile<kKeys, kHeadDim, Tiles::kThreads>(to, from, tile * kKeys);
  };

  float o[kM][kHeadDim / 8][4];
  Clear(o);
  OnlineSoftmax<kM> softmax(ScoreScale<kSoftCap>(params) * kLog2E);
  if (held.key_tiles.end > held.key_tiles.begin) {
    LoadTile<Tiles::kQueries, kHeadDim, Tiles::kThreads>(q_tile, held.q,
                                                         held.queries.begin);
    load(k_tile, held.k, held.key_tiles.end - 1);
  }
  for (int tile = held.key_tiles.end - 1; tile >= held.key_tiles.begin;
       --tile) {
    WaitForCopies();
    __syncthreads();  // K has arrived, the last V has been read
    load(v_tile, held.v, tile);
    float s[kM][kKeys / 8][4];
    MultiplyRows<T, kHeadDim>(q_rows, k_tile, s);
    ApplySoftCap<kSoftCap>(params, s);
    if (held.mask.NeedsMask(held.queries, {tile * kKeys, (tile + 1) * kKeys})) {
      ApplyMask<false>(held.mask, held.queries.begin + row, tile * kKeys, s);
    }
    WaitForCopies();
    __syncthreads();  // V has arrived, K has been read
    if (tile > held.key_tiles.begin) load(k_tile, held.k, tile - 1);
    softmax.Update(s, o);
    uint32_t p[kM][kKeys / kFragment<T>][4];
    PackFragments<T>(s, p);
    MultiplyInto<T, kHeadDim>(p, v_tile, o);
  }
  float lse[kM][2];
  softmax.Finish(o, lse);
  StoreForward<T, kHeadDim>(held, q_tile, o, lse);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_FORWARD_KERNEL_CUH_
