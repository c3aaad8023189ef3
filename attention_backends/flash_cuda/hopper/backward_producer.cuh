#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRODUCER_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRODUCER_CUH_

#include <cuda.h>

#include <cstdint>

#include "attention_backends/flash_cuda/hopper/backward_tile.cuh"
#include "framework/cuda/hopper/panels.cuh"
#include "framework/cuda/hopper/ptx.cuh"
#include "framework/cuda/hopper/ring.cuh"

namespace tessera {
namespace flash {
namespace hopper {

// Fetches K and V once, then Q and dO tile by tile.
template <typename Traits>
class BackwardProducer {
 public:
  using Shared = BackwardShared<Traits>;
  using QTile = typename Traits::QTile;
  using KTile = typename Traits::KTile;

  __device__ BackwardProducer(const BackwardMaps& maps,
                              const BackwardArgs& args, Shared& shared)
      : maps_(maps), args_(args), shared_(shared) {}

  __device__ void Run(BackwardTile<Traits> held) {
    LoadKeys(held);
    held.FindTiles(args_);
    for (int member = 0; member < args_.group; ++member) {
      for (int step = 0; step < held.steps; ++step) {
        LoadTile(held, member, held.TileAt(step));
      }
    }
  }

 private:
  static constexpr int kRowBytes =
      Traits::kQueries * static_cast<int>(sizeof(float));

  __device__ void LoadKeys(const BackwardTile<Traits>& held) {
    shared_.kv_full.ArriveExpecting(2 * KTile::kBytes);
#pragma unroll
    for (int panel = 0; panel < KTile::kCount; ++panel) {
      const TileCoordinate at = {panel * KTile::kWidth, held.first_key,
                                 held.kv_head, held.batch};
      TmaLoad(maps_.k, at, &shared_.kv_full,
              shared_.k + panel * KTile::kPanelBytes);
      TmaLoad(maps_.v, at, &shared_.kv_full,
              shared_.v + panel * KTile::kPanelBytes);
    }
  }

  __device__ void LoadTile(const BackwardTile<Traits>& held, int member,
                           int tile) {
    const int head = held.kv_head * args_.group + member;
    const int64_t row = int64_t{FirstScratchTile(args_, held, member) + tile} *
                        Traits::kQueries;
    const int stage = ring_.stage;
    shared_.q_empty[stage].Wait(ring_.parity ^ 1);
    shared_.q_full[stage].ArriveExpecting(QTile::kBytes + kRowBytes);
    Load(maps_.q, held, head, tile, &shared_.q_full[stage], shared_.q[stage]);
    BulkLoad(args_.scratch.lse2 + row, kRowBytes, &shared_.q_full[stage],
             shared_.lse2[stage]);
    shared_.d_o_empty[stage].Wait(ring_.parity ^ 1);
    shared_.d_o_full[stage].ArriveExpecting(QTile::kBytes + kRowBytes);
    Load(maps_.d_o, held, head, tile, &shared_.d_o_full[stage],
         shared_.d_o[stage]);
    BulkLoad(args_.scratch.delta + row, kRowBytes, &shared_.d_o_full[stage],
             shared_.delta[stage]);
    ring_.Advance();
  }

  __device__ static void Load(const CUtensorMap& map,
                              const BackwardTile<Traits>& held, int head,
                              int tile, Mbarrier* full, uint8_t* to) {
#pragma unroll
    for (int panel = 0; panel < QTile::kCount; ++panel) {
      TmaLoad(
          map,
          {panel * QTile::kWidth, tile * Traits::kQueries, head, held.batch},
          full, to + panel * QTile::kPanelBytes);
    }
  }

  const BackwardMaps& maps_;
  const BackwardArgs& args_;
  Shared& shared_;
  RingIndex<Traits::kStages> ring_;
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRODUCER_CUH_
