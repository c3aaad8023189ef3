#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_TILE_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_TILE_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/tile_scheduler.h"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"

// What the forward kernel is told, and which tile a CUDA block computes.

namespace tessera {
namespace flash {
namespace hopper {

template <typename Element_, int kHeadDim_, int kConsumers_, int kKeys_,
          bool kCausal_, bool kAnyMask_>
struct ForwardTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kConsumers = kConsumers_;  // warpgroups that compute
  static constexpr int kQueries = 64 * kConsumers;
  static constexpr int kKeys = kKeys_;  // rows of a K and V tile
  static constexpr bool kCausal = kCausal_;
  static constexpr bool kAnyMask = kAnyMask_;  // any mask, by ForwardArgs
  static constexpr int kStages = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  // 65536 registers of a multiprocessor: what the producer gives up, the
  // consumers take, in units of 8 per thread.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;

  using QTile = Panels<kQueries, kHeadDim>;
  using KTile = Panels<kKeys, kHeadDim>;
  static constexpr int kSums = kHeadDim / 2;  // of O, per thread
  static constexpr int kScores = kKeys / 2;   // of S, per thread
};

struct ForwardMaps {  // boxes: a tile; of O, a warpgroup's rows
  CUtensorMap q, k, v, o;
};

struct ForwardArgs {
  TileScheduler scheduler;
  int s = 0, t = 0;
  int heads = 0;  // H
  int group = 1;  // H / G
  float scale_log2 = 0;
  float* lse = nullptr;      // [B, H, S]
  int* next_tile = nullptr;  // zero at launch; counts tiles beyond the first
  // With kAnyMask; as in ForwardParams.
  int before = kAllKeys, after = kAllKeys;
  const int* document_begin = nullptr;
  const int* document_end = nullptr;
};

template <typename Traits>
struct ForwardShared {
  alignas(1024) uint8_t q[Traits::QTile::kBytes];
  alignas(1024) uint8_t o[Traits::QTile::kBytes];
  alignas(1024) uint8_t k[Traits::kStages][Traits::KTile::kBytes];
  alignas(1024) uint8_t v[Traits::kStages][Traits::KTile::kBytes];
  int tile;  // which of args.scheduler
  Mbarrier tile_full, tile_empty;
  Mbarrier q_full, q_empty;
  Mbarrier k_full[Traits::kStages], k_empty[Traits::kStages];
  Mbarrier v_full[Traits::kStages], v_empty[Traits::kStages];
};

// A tile of query rows and the key tiles that it attends to.
template <typename Traits>
struct ForwardTile {
  int first_row, head, kv_head, batch;
  int key_tiles;  // up to the last that a row sees; 0 if no row sees a key
  // The first tile that a row sees, and the tiles [first_unmasked,
  // unmasked_tiles) that every row sees whole. Both firsts are 0 without
  // kAnyMask, and callers say so: behind a function ptxas makes other code of
  // the causal kernels.
  int first_tile, first_unmasked, unmasked_tiles;

  __device__ static ForwardTile At(const ForwardArgs& args, int i) {
    const TileScheduler::Tile tile = args.scheduler.At(i);
    ForwardTile held;
    held.first_row = tile.index * Traits::kQueries;
    held.batch = tile.head / args.heads;
    held.head = tile.head % args.heads;
    held.kv_head = held.head / args.group;
    if constexpr (Traits::kAnyMask) {
      held.FindKeys(MaskOf<Traits>(args, held.batch));
      return held;
    }
    int keys = args.t;
    int seen_by_all = args.t;
    if (Traits::kCausal) {
      const auto mask = MaskOf<Traits>(args, held.batch);
      const int first_end = mask.Keys(held.first_row).end;
      keys = max(0, min(keys, first_end - 1 + Traits::kQueries));
      seen_by_all = max(0, min(keys, first_end));
    }
    held.key_tiles = (keys + Traits::kKeys - 1) / Traits::kKeys;
    held.unmasked_tiles = seen_by_all / Traits::kKeys;
    return held;
  }

 private:
  __device__ void FindKeys(const AttentionMask<int>& mask) {
    const auto rows = mask.QueriesFrom(first_row, Traits::kQueries);
    const KeyRange<int> seen = mask.Keys(rows);
    const auto tiles = TilesOf<Traits::kKeys>(seen);
    first_tile = tiles.begin;
    key_tiles = seen.size() == 0 ? 0 : tiles.end;
    // Rows beyond S are not stored, so the tiles of the others decide.
    const int by_all_begin = mask.Keys(rows.end - 1).begin;
    const int by_all_end = max(0, mask.KeysOfRow(rows.begin).end);
    first_unmasked =
        min(key_tiles, max(first_tile, CeilDiv(by_all_begin, Traits::kKeys)));
    unmasked_tiles = max(first_unmasked, by_all_end / Traits::kKeys);
  }
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_TILE_CUH_
