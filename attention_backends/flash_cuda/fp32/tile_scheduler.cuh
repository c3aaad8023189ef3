#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SCHEDULER_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SCHEDULER_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/key_range.h"

// The tile that a CUDA block holds, and the tiles over which it steps.

namespace tessera {
namespace flash {
namespace fp32 {

// One query tile of one head.
struct QueryTile {
  AttentionMask<int> mask;
  int batch, head, kv_head;
  QueryRange<int> queries;
  TileRange<int> key_tiles;  // the ones that it sees
  int64_t lse_row;           // of [B, H, S]: the head's first query

  // [B, H, S, D] and [B, G, T, D].
  template <typename T>
  __device__ __forceinline__ HeadRows<T> Queries(const HeadView& view,
                                                 int cols) const {
    return RowsOf<T>(view, batch, head, mask.s, cols);
  }
  __device__ __forceinline__ HeadRows<const float> Keys(const HeadView& view,
                                                        int cols) const {
    return RowsOf<const float>(view, batch, kv_head, mask.t, cols);
  }
};

// CUDA blocks take the query tiles of a head from last to first: under a causal
// mask the long ones start early.
template <int kQueries, int kKeys>
__device__ __forceinline__ QueryTile FindQueryTile(const ForwardParams& p) {
  const int s = p.s, heads = p.h;
  const int query_tiles = CeilDiv(s, kQueries);
  const int tile = query_tiles - 1 - blockIdx.x % query_tiles;
  const int head_of_all = blockIdx.x / query_tiles;
  QueryTile held;
  held.batch = head_of_all / heads;
  held.mask = SequenceMask(p, held.batch);
  held.head = head_of_all % heads;
  held.kv_head = held.head / (heads / static_cast<int>(p.g));
  held.queries = held.mask.QueriesFrom(tile * kQueries, kQueries);
  held.key_tiles = TilesOf<kKeys>(held.mask.Keys(held.queries));
  held.lse_row = static_cast<int64_t>(head_of_all) * s;
  return held;
}

// A query tile over which a CUDA block steps.
struct QueryStep {
  int head, tile;
};

// One key tile of one key head. Its steps are the query tiles of each of the
// heads [first_head, end_head); none if no query sees a key of the tile.
struct KeyTile {
  AttentionMask<int> mask;
  int batch, kv_head;
  int first_key;
  int first_head, end_head;
  TileRange<int> query_tiles;

  __device__ __forceinline__ QueryStep FirstStep() const {
    return {first_head, query_tiles.begin};
  }
  __device__ __forceinline__ QueryStep After(QueryStep at) const {
    return at.tile + 1 < query_tiles.end
               ? QueryStep{at.head, at.tile + 1}
               : QueryStep{at.head + 1, query_tiles.begin};
  }
  __device__ __forceinline__ bool IsStep(QueryStep at) const {
    return at.head < end_head;
  }

  // [B, G, T, D] and [B, H, S, D].
  template <typename T>
  __device__ __forceinline__ HeadRows<T> Keys(const HeadView& view,
                                              int cols) const {
    return RowsOf<T>(view, batch, kv_head, mask.t, cols);
  }
  template <typename T>
  __device__ __forceinline__ HeadRows<T> Queries(const HeadView& view, int head,
                                                 int cols) const {
    return RowsOf<T>(view, batch, head, mask.s, cols);
  }
};

template <int kKeys, int kQueries>
__device__ __forceinline__ KeyTile FindKeyTile(const ForwardParams& p) {
  const int t = p.t, heads = p.h, kv_heads = p.g;
  const int key_tiles = CeilDiv(t, kKeys);
  const int head_of_all = blockIdx.x / key_tiles;
  const int group = heads / kv_heads;
  KeyTile held;
  held.batch = head_of_all / kv_heads;
  held.mask = SequenceMask(p, held.batch);
  held.kv_head = head_of_all % kv_heads;
  held.first_key = blockIdx.x % key_tiles * kKeys;
  held.first_head = held.kv_head * group;
  held.end_head = held.first_head + group;
  held.query_tiles = TilesOf<kQueries>(
      held.mask.Queries(held.mask.KeysFrom(held.first_key, kKeys)));
  if (held.query_tiles.end <= held.query_tiles.begin) {
    held.end_head = held.first_head;
  }
  return held;
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_TILE_SCHEDULER_CUH_
