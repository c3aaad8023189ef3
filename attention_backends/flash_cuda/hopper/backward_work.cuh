#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_layout.h"
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
  static constexpr int kQueries =
      BackwardQueries(kHeadDim, kDeterministic_);  // of a tile
  static constexpr int kKeys = 128;                // rows of a block
  static constexpr bool kCausal = kCausal_;
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
  // Measured on an H200 (docs/flash_hopper.md).
  static constexpr bool kAddressBeforeTurn =
      kDeterministic && (!kCausal || kHeadDim == 64 || kHeadDim == 128);
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
  int work;  // which of args.order
  Mbarrier kv_full;
  // It is this block's turn at a tile of dQ; its warps have added to it.
  Mbarrier dq_turn, dq_added;
  Mbarrier q_full[kStages], q_empty[kStages];
  Mbarrier d_o_full[kStages], d_o_empty[kStages];
};

// A block of keys and the tiles of queries that see it.
template <typename Traits>
struct BackwardWork {
  int block, first_key, kv_head, batch;
  int tiles;         // of queries, in all
  int first_tile;    // that sees the block
  int steps;         // from there on to the last
  int masked_steps;  // in the first so many, not every query sees every key

  __device__ static BackwardWork At(const BackwardArgs& args, int i) {
    const TileOrder::Tile tile = args.order.At(i);
    BackwardWork work;
    // The order hands out the last block first. Most queries see the first
    // keys; but turns are in the order in which blocks are handed out, and with
    // the short ones first they wait less for each other.
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
    }
    work.steps = Traits::kCausal ? work.tiles - work.first_tile : work.tiles;
    const bool has_tail = work.first_key + Traits::kKeys > args.t;
    work.masked_steps =
        has_tail ? work.steps
                 : max(0, min(work.steps, unmasked_tile - work.first_tile));
    return work;
  }

  // How many blocks add to the tile before this one: those handed out before.
  __device__ int TurnAt(const BackwardArgs& args, int tile) const {
    int last_block = args.order.blocks - 1;  // that the tile sees
    if (Traits::kCausal) {
      const int last_row = min(args.s, (tile + 1) * Traits::kQueries) - 1;
      last_block =
          min(last_block, (last_row + args.t - args.s) / Traits::kKeys);
    }
    return last_block - block;
  }
};

// Where a head's tiles of queries begin in the scratch. Each takes 32 KiB or
// more, so their numbers have 31 bits.
template <typename Traits>
__device__ int FirstScratchTile(const BackwardArgs& args,
                                const BackwardWork<Traits>& work, int member) {
  const int kv_head = work.batch * args.kv_heads + work.kv_head;
  return (kv_head * args.group + member) * work.tiles;
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_WORK_CUH_
