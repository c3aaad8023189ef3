#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_DQ_TURNS_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_DQ_TURNS_H_

#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {
namespace flash {
namespace hopper {

// The order in which blocks of keys add to the tiles of dQ when the sums have
// to come out the same in every run.
//
// Without a mask every block visits every tile. If all started at the first,
// each would wait for the one before it; so block j of n starts where j / n of
// the tiles lie behind it and goes round. A tile then meets the blocks that
// started before it, the nearest first, and after those the ones from the far
// end: that is their turn. (FLASH_CUDA needs all blocks of a head at work at
// the same time for this.)

TESSERA_HOST_DEVICE int FirstTile(int block, int blocks, int tiles) {
  return static_cast<int>(int64_t{block} * tiles / blocks);
}

// How many blocks come before `block` at `tile`.
TESSERA_HOST_DEVICE int RotatedTurn(int block, int tile, int blocks,
                                    int tiles) {
  // Blocks that start at this tile or before it.
  const int ceiling = ((tile + 1) * blocks + tiles - 1) / tiles;
  const int started = ceiling < blocks ? ceiling : blocks;
  return block < started ? started - 1 - block : started + blocks - 1 - block;
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_DQ_TURNS_H_
