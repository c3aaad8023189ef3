#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_WORKSPACE_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_WORKSPACE_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// Bytes that the kernels need, for plans and allocations. Includes no CUDA.

namespace tessera {
namespace flash {
namespace fp32 {

// Bytes of BackwardParams::workspace: two floats per query. dQ is summed in
// place.
inline int64_t BackwardWorkspaceBytes(const ForwardParams& p) {
  return p.b * p.h * p.s * 2 * int64_t{sizeof(float)};
}

// The most shared memory per CUDA block, in forward and, if needs_grad,
// backward.
inline int SharedBytes(const ForwardParams& p, bool needs_grad) {
  return WithKernels(p, [&](auto dim, auto) {
    constexpr int kForward = LargeForwardTiles<dim()>::kSharedBytes;
    constexpr int kBackward = LargeBackwardTiles<dim()>::kSharedBytes;
    return needs_grad && kBackward > kForward ? kBackward : kForward;
  });
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_WORKSPACE_H_
