#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAYOUT_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAYOUT_H_

#include <cstdint>

#include "framework/cuda/host_device.h"

namespace tessera {
namespace flash {
namespace hopper {

// The scratch that the three backward kernels share. The sums of dQ are stored
// in the order in which the threads of the main kernel hold them, so that a
// warp adds 512 contiguous bytes at a time and nothing is staged.

// Number of queries in the scratch, which pads them to whole tiles.
TESSERA_HOST_DEVICE int64_t PaddedRows(int64_t s, int tile) {
  return (s + tile - 1) / tile * tile;
}

struct BackwardScratch {
  float* dq = nullptr;     // [B H, tiles, DqTile::kElements]
  int* turns = nullptr;    // [B H, tiles]: CUDA blocks that have added
  int* taken = nullptr;    // tiles that CUDA blocks have taken
  float* lse2 = nullptr;   // [B H, padded S]: log2(e) L; infinity without a key
  float* delta = nullptr;  // [B H, padded S]: rowsum(dO o O)
};

// The layout of a tile of dQ: kQueries rows by kHeadDim columns, held by two
// warpgroups, which have 64 rows of a product each.
template <int kQueries_, int kHeadDim_>
struct DqTile {
  static constexpr int kQueries = kQueries_;
  static constexpr int kHeadDim = kHeadDim_;
  // A product's rows are the 128 queries, or, if there are fewer queries, the
  // head's dimensions: then dQ^T = K^T dS^T is computed, and rows beyond
  // kHeadDim are unused.
  static constexpr bool kTransposed = kQueries != 128;
  static constexpr int kColumns = kTransposed ? kQueries : kHeadDim;
  static constexpr int kSums = kColumns / 2;  // per thread
  static constexpr int kElements = 2 * 64 * kColumns;
  static_assert(!kTransposed || (64 < kHeadDim && kHeadDim <= 128));

  struct Place {
    int query, column;
  };
  // Whether a warp's 16 rows are used.
  TESSERA_HOST_DEVICE static bool IsUsed(int warpgroup, int warp) {
    return !kTransposed || 64 * warpgroup + 16 * warp < kHeadDim;
  }
  // The place of the float at `index` of the tile, which is
  // [warpgroup][sums / 4][thread][4].
  TESSERA_HOST_DEVICE static Place At(int index) {
    const int component = index % 4;
    const int thread = index / 4 % 128;
    const int group = index / 512 % (kSums / 4);
    const int warpgroup = index / (128 * kSums);
    const int row =
        64 * warpgroup + thread / 32 * 16 + thread % 32 / 4 + component / 2 * 8;
    const int column = 8 * group + thread % 4 * 2 + component % 2;
    return kTransposed ? Place{column, row} : Place{row, column};
  }
};

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAYOUT_H_
