#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_WORKSPACE_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_WORKSPACE_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"

// Bytes that the kernels need, for plans and allocations. Includes no CUDA.

namespace tessera {
namespace flash {
namespace portable {

// Calls fn with the tiles of the kernels that run p. In FP32 head dims have
// kernels up to kLargestTf32HeadDim.
template <typename Fn>
auto WithTiles(const ForwardParams& p, const Fn& fn) {
  return WithKernels(p, [&](auto dim, auto) {
    return p.type == FloatType::kFloat
               ? fn(ForwardTiles<dim(), 4>(), BackwardTiles<dim(), 4>())
               : fn(ForwardTiles<dim(), 2>(), BackwardTiles<dim(), 2>());
  });
}

// The parts of BackwardParams::workspace.
struct WorkspaceLayout {
  int64_t statistics_bytes;  // two floats per query, rounded up to 256
  int64_t dq_bytes;          // FP32 sums of dQ, after the statistics; 0: none
  int64_t total() const { return statistics_bytes + dq_bytes; }
};

inline WorkspaceLayout LayoutOf(const ForwardParams& p, bool deterministic) {
  const int64_t rows = p.b * p.h * p.s;
  WorkspaceLayout layout = {.statistics_bytes = (rows * 8 + 255) / 256 * 256,
                            .dq_bytes = 0};
  if (deterministic) return layout;
  WithTiles(p, [&](auto, auto backward) {
    using Tiles = decltype(backward);
    const int64_t tiles = (p.s + Tiles::kStreamed - 1) / Tiles::kStreamed;
    layout.dq_bytes = p.b * p.h * tiles * Tiles::kDqElements * 4;
  });
  return layout;
}

// The most shared memory per CUDA block, in forward and, if needs_grad,
// backward.
inline int SharedBytes(const ForwardParams& p, bool needs_grad) {
  return WithTiles(p, [&](auto forward, auto backward) {
    constexpr int kForward = decltype(forward)::kSharedBytes;
    constexpr int kBackward = decltype(backward)::kSharedBytes;
    return needs_grad && kBackward > kForward ? kBackward : kForward;
  });
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_WORKSPACE_H_
