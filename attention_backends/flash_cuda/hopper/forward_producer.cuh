#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_PRODUCER_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_PRODUCER_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/forward_tile.cuh"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/hopper/ring.cuh"

namespace tessera {
namespace flash {
namespace hopper {

// Feeds the rings, in the order in which the consumers drain them.
template <typename Traits>
class ForwardProducer {
 public:
  using Shared = ForwardShared<Traits>;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;

  __device__ ForwardProducer(const ForwardMaps& maps, Shared& shared)
      : maps_(maps), shared_(shared) {}

  // Takes the next tile when all loads of the current one are in flight. That
  // is late enough that no tile waits for a long one while other CUDA blocks
  // are idle, and before the consumers ask for it.
  __device__ void Run(const ForwardArgs& args) {
    int i = blockIdx.x;
    while (i < args.scheduler.count()) {
      Announce(i);
      Feed(ForwardTile<Traits>::At(args, i));
      i = gridDim.x + atomicAdd(args.next_tile, 1);
    }
    Announce(i);
  }

 private:
  __device__ void Announce(int i) {
    shared_.tile_empty.Wait(tile_parity_ ^ 1);
    tile_parity_ ^= 1;
    shared_.tile = i;
    shared_.tile_full.Arrive();
  }

  __device__ void Feed(const ForwardTile<Traits>& held) {
    LoadQ(held);
    if (held.key_tiles == 0) return;
    Load(maps_.k, held, held.key_tiles - 1, &k_, shared_.k, shared_.k_full,
         shared_.k_empty);
    const int first_tile = Traits::kAnyMask ? held.first_tile : 0;
    for (int tile = held.key_tiles - 1; tile >= first_tile; --tile) {
      if (tile > first_tile) {
        Load(maps_.k, held, tile - 1, &k_, shared_.k, shared_.k_full,
             shared_.k_empty);
      }
      Load(maps_.v, held, tile, &v_, shared_.v, shared_.v_full,
           shared_.v_empty);
    }
  }

  __device__ void LoadQ(const ForwardTile<Traits>& held) {
    shared_.q_empty.Wait(q_parity_ ^ 1);
    q_parity_ ^= 1;
    shared_.q_full.ArriveExpecting(QTile::kBytes);
#pragma unroll
    for (int panel = 0; panel < QTile::kCount; ++panel) {
      TmaLoad(maps_.q,
              {panel * QTile::kWidth, held.first_row, held.head, held.batch},
              &shared_.q_full, shared_.q + panel * QTile::kPanelBytes);
    }
  }

  __device__ void Load(const CUtensorMap& map, const ForwardTile<Traits>& held,
                       int tile, RingIndex<Traits::kStages>* ring,
                       uint8_t (*stages)[KTile::kBytes], Mbarrier* full,
                       Mbarrier* empty) {
    empty[ring->stage].Wait(ring->parity ^ 1);
    full[ring->stage].ArriveExpecting(KTile::kBytes);
#pragma unroll
    for (int panel = 0; panel < KTile::kCount; ++panel) {
      TmaLoad(map,
              {panel * KTile::kWidth, tile * Traits::kKeys, held.kv_head,
               held.batch},
              &full[ring->stage],
              stages[ring->stage] + panel * KTile::kPanelBytes);
    }
    ring->Advance();
  }

  const ForwardMaps& maps_;
  Shared& shared_;
  uint32_t tile_parity_ = 0, q_parity_ = 0;
  RingIndex<Traits::kStages> k_, v_;
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_PRODUCER_CUH_
