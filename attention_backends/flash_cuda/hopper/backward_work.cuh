#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/hopper/dq_turns.h"
#include "attention_backends/flash_cuda/hopper/panels.cuh"
#include "attention_backends/flash_cuda/hopper/ptx.cuh"
#include "attention_backends/flash_cuda/hopper/tile_order.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"

// What the main backward kernel is told, and how it divides its work.

namespace tessera {
namespace flash {
namespace hopper {

template <typename Element_, int kHeadDim_, bool kCausal_, bool kDeterministic_>
struct BackwardTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kQueries = BackwardQueries(kHeadDim);  // of a tile
  static constexpr int kKeys = 128;                           // rows of a block
  static constexpr bool kCausal = kCausal_;
  // The blocks add to a tile of dQ in a fixed order (dq_turns.h).
  static constexpr bool kDeterministic = kDeterministic_;
  static constexpr int kStages = 2;
  static constexpr int kThreads = 128 * 3;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  using QTile = Panels<kQueries, kHeadDim>;
  using KTile = Panels<kKeys, kHeadDim>;
  using DsTile = Panels<kKeys, kQueries>;  // dS^T
  using Dq = DqTileOf<kHeadDim>;
  static constexpr int kSums = kHeadDim / 2;    // of dK and dV, per thread
  static constexpr int kScores = kQueries / 2;  // of S and dP, per thread
};

struct BackwardMaps {
  CUtensorMap q, d_o;  // boxes: a tile of queries
  CUtensorMap k, v;    // boxes: a block of keys
  CUtensorMap dk, dv;  // boxes: a warpgroup's rows
};

struct BackwardArgs {
  TileOrder order;  // of blocks of keys, over B G heads
  // Blocks of a head start at different tiles of queries, and all run at the
  // same time.
  bool rotate = false;
  int s = 0, t = 0;
  int kv_heads = 0;  // G
  int group = 1;     // H / G
  float scale = 0, scale_log2 = 0;
  BackwardScratch scratch;
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
  Mbarrier kv_full;
  Mbarrier q_full[kStages], q_empty[kStages];
  Mbarrier d_o_full[kStages], d_o_empty[kStages];
};

// A block of keys and the tiles of queries that see it.
template <typename Traits>
struct BackwardWork {
  int block, first_key, kv_head, batch;
  int tiles;         // of queries, in all
  int first_tile;    // where to start
  int steps;         // how many to visit, from there on, round and round
  int masked_steps;  // in the first so many, not every query sees every key

  static constexpr bool kMayRotate = Traits::kDeterministic && !Traits::kCausal;

  __device__ int TileAt(int step) const {
    const int tile = first_tile + step;
    return !kMayRotate || tile < tiles ? tile : tile - tiles;
  }

  __device__ static BackwardWork At(const BackwardArgs& args, int i) {
    const TileOrder::Tile tile = args.order.At(i);
    BackwardWork work;
    // The order hands out the last block first. Most queries see the first
    // keys; but whose turn depends on another block must come after it.
    work.block = Traits::kDeterministic ? tile.block
                                        : args.order.blocks - 1 - tile.block;
    work.first_key = work.block * Traits::kKeys;
    work.batch = tile.head / args.kv_heads;
    work.kv_head = tile.head % args.kv_heads;
    work.tiles = (args.s + Traits::kQueries - 1) / Traits::kQueries;
    work.first_tile = 0;
    int unmasked_tile = 0;
    if (Traits::kCausal) {
      const int first_row = work.first_key - (args.t - args.s);
      const int last_row = first_row + Traits::kKeys - 1;
      work.first_tile = min(work.tiles, max(0, first_row) / Traits::kQueries);
      unmasked_tile =
          (max(0, last_row) + Traits::kQueries - 1) / Traits::kQueries;
    } else if (kMayRotate && args.rotate) {
      work.first_tile = FirstTile(work.block, args.order.blocks, work.tiles);
    }
    work.steps = Traits::kCausal ? work.tiles - work.first_tile : work.tiles;
    const bool has_tail = work.first_key + Traits::kKeys > args.t;
    work.masked_steps =
        has_tail ? work.steps
                 : max(0, min(work.steps, unmasked_tile - work.first_tile));
    if (!Traits::kCausal && !has_tail) work.masked_steps = 0;
    return work;
  }

  // How many blocks add to the tile before this one, in a fixed order.
  __device__ int TurnAt(const BackwardArgs& args, int tile) const {
    if (kMayRotate && args.rotate) {
      return RotatedTurn(block, tile, args.order.blocks, tiles);
    }
    int last_block = args.order.blocks - 1;  // that the tile sees
    if (Traits::kCausal) {
      const int last_row = min(args.s, (tile + 1) * Traits::kQueries) - 1;
      last_block =
          min(last_block, (last_row + args.t - args.s) / Traits::kKeys);
    }
    return last_block - block;
  }
};

// The number of a tile of queries in the scratch.
template <typename Traits>
__device__ int64_t ScratchTile(const BackwardArgs& args,
                               const BackwardWork<Traits>& work, int member,
                               int tile) {
  const int64_t head =
      (static_cast<int64_t>(work.batch) * args.kv_heads + work.kv_head) *
          args.group +
      member;
  return head * work.tiles + tile;
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_
