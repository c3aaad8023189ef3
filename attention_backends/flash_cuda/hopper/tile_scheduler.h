#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_SCHEDULER_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_SCHEDULER_H_

#include <algorithm>
#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/key_range.h"
#include "framework/cuda/host_device.h"

namespace tessera {
namespace flash {
namespace hopper {

// In which order CUDA blocks take the tiles of every head: causal tiles from
// the longest to the shortest, so that the last ones to start are short. Heads
// come in sections whose keys and values stay in L2 while their tiles run.
struct TileScheduler {
  int tiles = 0;    // per head
  int heads = 0;    // H B, batch outermost
  int section = 1;  // heads that run at the same time

  struct Tile {
    int index = 0, head = 0;
  };

  TESSERA_HOST_DEVICE int count() const { return tiles * heads; }

  // 0 <= i < count(); the last tile of a head first.
  TESSERA_HOST_DEVICE Tile At(int i) const {
    const int first_head = i / (section * tiles) * section;
    const int width =
        section < heads - first_head ? section : heads - first_head;
    const int rest = i - first_head * tiles;
    return {.index = tiles - 1 - rest / width,
            .head = first_head + rest % width};
  }
};

// The mask of one sequence, by a kernel's arguments. Causal and full masks have
// kernels of their own: with limits known to the compiler, their loops need no
// second bound. T is read before S: the other way round ptxas schedules the
// forward kernels differently.
template <typename Traits, typename Args>
TESSERA_HOST_DEVICE AttentionMask<int> MaskOf(const Args& args, int batch) {
  if constexpr (Traits::kAnyMask) return SequenceMask(args, batch);
  const int t = args.t, s = args.s;
  return {s, t, kAllKeys, Traits::kCausal ? 0 : kAllKeys};
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_SCHEDULER_H_
