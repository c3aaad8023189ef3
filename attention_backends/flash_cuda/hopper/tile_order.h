#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_ORDER_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_ORDER_H_

#include <algorithm>
#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {
namespace flash {
namespace hopper {

// Which piece of work comes when: the blocks of rows of every head, with
// causal blocks from the longest to the shortest, so that the last ones to
// start are short. Heads come in sections whose keys and values stay in L2
// while their blocks run.
struct TileOrder {
  int blocks = 0;   // of rows, per head
  int heads = 0;    // H B, batch outermost
  int section = 1;  // heads that run at the same time

  struct Tile {
    int block = 0, head = 0;
  };

  TESSERA_HOST_DEVICE int count() const { return blocks * heads; }

  // 0 <= i < count(); the last block of rows first.
  TESSERA_HOST_DEVICE Tile At(int i) const {
    const int first_head = i / (section * blocks) * section;
    const int width =
        section < heads - first_head ? section : heads - first_head;
    const int rest = i - first_head * blocks;
    return {.block = blocks - 1 - rest / width,
            .head = first_head + rest % width};
  }
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILE_ORDER_H_
