#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_TILE_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_TILE_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/hopper/tile_scheduler.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"

// What the main backward kernel is told, and which tile a CUDA block holds.

namespace tessera {
namespace flash {
namespace hopper {

template <typename Element_, int kHeadDim_, bool kCausal_, bool kDeterministic_,
          bool kAnyMask_ = false>
struct BackwardTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kQueries =
      BackwardQueries(kHeadDim, kDeterministic_);  // of a tile
  static constexpr int kKeys = 128;                // of a tile
  static constexpr bool kCausal = kCausal_;
  static constexpr bool kAnyMask = kAnyMask_;  // any mask, by BackwardArgs
  // Blocks add to a tile of dQ in the order in which they are handed out.
  static constexpr bool kDeterministic = kDeterministic_;
  static constexpr int kStages = 2;
  static constexpr int kThreads = 128 * 3;
  static constexpr int kConsumerWarps = 8;
  // Of 168 times 384 threads. The thread that keeps the turns could use some
  // more, where the consumers have them to spare.
  static constexpr bool kSpare = kDeterministic && kQueries + kHeadDim <= 192;
  static constexpr int kProducerRegisters = kSpare ? 40 : 24;
  static constexpr int kConsumerRegisters = kSpare ? 232 : 240;

  using QTile = Panels<kQueries, kHeadDim>;
  using KTile = Panels<kKeys, kHeadDim>;
  using DsTile = Panels<kKeys, kQueries>;  // dS^T
  using Dq = DqTileOf<kHeadDim, kDeterministic>;
  // V stays in registers where some are to spare: dP^T = V dO^T then reads one
  // operand from shared memory instead of two.
  static constexpr bool kHoldsV = kHeadDim == 96 && !kDeterministic;
  // The next block waits while this one adds to dQ, and so for the address of
  // its sums, unless that is computed before; which costs two registers.
  // Measured on an H200 (docs/flash_hopper_log.md).
  static constexpr bool kAddressBeforeTurn =
      kDeterministic && (!kCausal || kHeadDim == 64 || kHeadDim == 128);
  static constexpr int kSums = kHeadDim / 2;    // of dK and dV, per thread
  static constexpr int kScores = kQueries / 2;  // of S and dP, per thread
};

struct BackwardMaps {
  CUtensorMap q, d_o;  // boxes: a tile of queries
  CUtensorMap k, v;    // boxes: a tile of keys
  CUtensorMap dk, dv;  // boxes: a warpgroup's rows
};

struct BackwardArgs {
  TileScheduler scheduler;  // of key tiles, over B G heads
  int s = 0, t = 0;
  int kv_heads = 0;  // G
  int group = 1;     // H / G
  // Deterministic only: the first keys, which most queries see, are handed out
  // first, and all blocks begin at the last queries. If not, the last keys are
  // handed out first, and a block begins at the first queries that see its
  // keys, where nobody adds before it.
  bool longest_first = false;
  float scale = 0, scale_log2 = 0;
  BackwardScratch scratch;
  // With kAnyMask; as in ForwardParams.
  int before = kAllKeys, after = kAllKeys;
  const int* document_begin = nullptr;
  const int* document_end = nullptr;
};

template <typename Traits>
struct BackwardShared {
  static constexpr int kStages = Traits::kStages;
  alignas(1024) uint8_t k[Traits::KTile::kBytes];  // dK at the end
  alignas(1024) uint8_t v[Traits::KTile::kBytes];  // dV at the end
  alignas(1024) uint8_t q[kStages][Traits::QTile::kBytes];
  alignas(1024) uint8_t d_o[kStages][Traits::QTile::kBytes];
  alignas(1024) uint8_t ds[2][Traits::DsTile::kBytes];
  alignas(16) float lse2[kStages][Traits::kQueries];
  alignas(16) float delta[kStages][Traits::kQueries];
  int tile;  // which of args.scheduler
  Mbarrier kv_full;
  // It is this block's turn at a tile of dQ; its warps have added to it.
  Mbarrier dq_turn, dq_added;
  Mbarrier q_full[kStages], q_empty[kStages];
  Mbarrier d_o_full[kStages], d_o_empty[kStages];
};

// A tile of keys and the tiles of queries that see it.
template <typename Traits>
struct BackwardTile {
  int index, first_key, kv_head, batch;
  int tiles;         // of queries, in all
  int first_tile;    // that sees the key tile
  int steps;         // from there on to the last that sees it
  int masked_steps;  // those in which some query does not see some key
  // With kAnyMask: the tiles whose queries see all keys of the tile.
  int first_unmasked, end_unmasked;
  bool walks_down;  // begins at the last tile; then the last are masked

  __device__ static BackwardTile At(const BackwardArgs& args, int i) {
    const TileScheduler::Tile tile = args.scheduler.At(i);
    BackwardTile held;
    held.walks_down = Traits::kDeterministic && args.longest_first;
    const bool longest_first = held.walks_down || !Traits::kDeterministic;
    // The scheduler hands out the last tile first, but most queries see the
    // first keys.
    held.index =
        longest_first ? args.scheduler.tiles - 1 - tile.index : tile.index;
    held.first_key = held.index * Traits::kKeys;
    held.batch = tile.head / args.kv_heads;
    held.kv_head = tile.head % args.kv_heads;
    held.tiles = (args.s + Traits::kQueries - 1) / Traits::kQueries;
    held.first_tile = 0;
    if constexpr (Traits::kAnyMask) return held;  // FindTiles() is to follow
    int unmasked_tile = 0;
    if (Traits::kCausal) {
      const int first_row =
          MaskOf<Traits>(args, held.batch).FirstQuery(held.first_key);
      const int last_row = first_row + Traits::kKeys - 1;
      held.first_tile = min(held.tiles, max(0, first_row) / Traits::kQueries);
      unmasked_tile =
          (max(0, last_row) + Traits::kQueries - 1) / Traits::kQueries;
    }
    held.steps = Traits::kCausal ? held.tiles - held.first_tile : held.tiles;
    const bool has_tail = held.first_key + Traits::kKeys > args.t;
    held.masked_steps =
        has_tail ? held.steps
                 : max(0, min(held.steps, unmasked_tile - held.first_tile));
    return held;
  }

  // With kAnyMask: finds the tiles of queries. Documents are read from memory,
  // which takes as long as K and V, so that these are fetched first.
  __device__ void FindTiles(const BackwardArgs& args) {
    if constexpr (!Traits::kAnyMask) return;
    const AttentionMask<int> mask = MaskOf<Traits>(args, batch);
    const KeyRange<int> keys = mask.KeysFrom(first_key, Traits::kKeys);
    const QueryRange<int> seen_by = mask.Queries(keys);
    const auto seen_tiles = TilesOf<Traits::kQueries>(seen_by);
    first_tile = seen_tiles.begin;
    steps = seen_by.size() == 0 ? 0 : seen_tiles.end - seen_tiles.begin;
    // Queries that see the last key and the first, so all of the tile. Rows
    // beyond S weigh nothing.
    const int begin = mask.Queries(keys.end - 1).begin;
    const int end = mask.Queries(keys.begin).end;
    first_unmasked = CeilDiv(begin, Traits::kQueries);
    end_unmasked = end == mask.s ? tiles : max(0, end) / Traits::kQueries;
    if (first_key + Traits::kKeys > mask.t) end_unmasked = 0;
    masked_steps = 0;  // not used
  }

  // The tile of queries of a step.
  __device__ int TileAt(int step) const {
    if constexpr (Traits::kAnyMask) {
      return walks_down ? first_tile + steps - 1 - step : first_tile + step;
    }
    return walks_down ? tiles - 1 - step : first_tile + step;
  }
  __device__ bool IsMasked(int step) const {
    if constexpr (Traits::kAnyMask) {
      const int tile = TileAt(step);
      return tile < first_unmasked || tile >= end_unmasked;
    }
    return walks_down ? step >= steps - masked_steps : step < masked_steps;
  }

  // How many CUDA blocks add to the tile of dQ before this one: those handed
  // out before.
  __device__ int TurnAt(const BackwardArgs& args, int tile) const {
    if constexpr (Traits::kAnyMask) {
      const AttentionMask<int> mask = MaskOf<Traits>(args, batch);
      const auto seen = TilesOf<Traits::kKeys>(mask.Keys(
          mask.QueriesFrom(tile * Traits::kQueries, Traits::kQueries)));
      return walks_down ? index - seen.begin : seen.end - 1 - index;
    }
    // Queries that see a key see all earlier ones.
    if (walks_down) return index;
    int last_tile = args.scheduler.tiles - 1;  // that the tile sees
    if (Traits::kCausal) {
      const int last_row = min(args.s, (tile + 1) * Traits::kQueries) - 1;
      last_tile =
          min(last_tile, (MaskOf<Traits>(args, batch).Keys(last_row).end - 1) /
                             Traits::kKeys);
    }
    return last_tile - index;
  }
};

// Where a head's tiles of queries begin in the scratch. Each takes 32 KiB or
// more, so their numbers have 31 bits.
template <typename Traits>
__device__ int FirstScratchTile(const BackwardArgs& args,
                                const BackwardTile<Traits>& held, int member) {
  const int kv_head = held.batch * args.kv_heads + held.kv_head;
  return (kv_head * args.group + member) * held.tiles;
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_TILE_CUH_
