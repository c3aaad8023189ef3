#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILES_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILES_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/hopper/head_dims.h"
#include "attention_backends/flash_cuda/with_head_dim.h"

// Tile sizes of the Hopper kernels, and the workspace that follows from them.
// Includes no CUDA.

namespace tessera {
namespace flash {
namespace hopper {

// Calls fn with the head dim of the kernels that run head dim d, as a
// std::integral_constant: the next larger one, whose surplus columns the copy
// engine fills with zeros.
template <typename Fn>
auto WithHeadDim(int64_t d, const Fn& fn) {
  return flash::WithHeadDim(HeadDims(), d, fn);
}

inline bool HasKernels(const ForwardParams& p, int compute_capability) {
  return compute_capability == 90 && p.d <= LargestOf(HeadDims()) &&
         p.type != FloatType::kFloat && p.soft_cap == 0;
}

// Forward: warpgroups of 64 query rows, and keys per tile.
//
// A thread has 160 registers with three warpgroups and 232 with two, for O (D /
// 2), S (keys / 2), P (keys / 4) and about 25 more: with three, 128 keys spill
// at 80 columns. Three hide each other's exponentials better and read K and V
// for more queries; two waste less on the diagonal and on the tails of short
// sequences. Measured on an H200 (docs/flash_hopper_log.md).
struct ForwardTileSize {
  int warpgroups, keys;
};
constexpr ForwardTileSize ForwardTileSizeOf(int head_dim, bool causal,
                                            bool short_rows) {
  constexpr ForwardTileSize kTwo = {2, 128};
  if (head_dim == 128) return kTwo;
  if (short_rows && (causal || head_dim > 64)) return kTwo;
  return head_dim == 64 ? ForwardTileSize{3, 128} : ForwardTileSize{3, 112};
}
inline constexpr int64_t kShortRows = 1024;  // in keys

// Backward: queries per tile. A thread holds dK and dV (D / 2 each) and two
// score tiles (queries / 2 each) in at most 208 of its 240 registers, or 192 if
// it also keeps the turns of dQ. More queries read K and V less often. Measured
// on an H200 (docs/flash_hopper_log.md).
constexpr int BackwardQueries(int head_dim, bool deterministic) {
  if (head_dim <= 80) return 128;
  return head_dim == 128 && deterministic ? 64 : 80;
}

template <int kHeadDim, bool kDeterministic>
using DqTileOf = DqTile<BackwardQueries(kHeadDim, kDeterministic), kHeadDim>;

// Sizes of the parts of BackwardParams::workspace, in floats (or ints).
template <typename Dq>
struct ScratchSizes {
  explicit ScratchSizes(const ForwardParams& p)
      : tiles(p.b * p.h * (PaddedRows(p.s, Dq::kQueries) / Dq::kQueries)),
        rows(tiles * Dq::kQueries),
        dq(tiles * Dq::kElements) {}
  // The part to which CUDA blocks add; a multiple of 16 bytes.
  int64_t sums() const { return dq + (tiles + 1 + 3) / 4 * 4; }
  int64_t total() const { return sums() + 2 * rows; }

  int64_t tiles, rows, dq;
};

inline int64_t BackwardWorkspaceBytes(const ForwardParams& p,
                                      bool deterministic) {
  return WithHeadDim(p.d, [&](auto dim) {
    const int64_t floats =
        deterministic ? ScratchSizes<DqTileOf<dim(), true>>(p).total()
                      : ScratchSizes<DqTileOf<dim(), false>>(p).total();
    return floats * int64_t{sizeof(float)};
  });
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_TILES_H_
