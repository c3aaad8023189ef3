#ifndef ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/portable/workspace.h"

// Which kernels run a backward pass, and what scratch they need. No CUDA in
// here.

namespace tessera {
namespace flash {

inline int64_t BackwardWorkspaceBytes(const ForwardParams& p,
                                      bool deterministic,
                                      int compute_capability) {
  return hopper::HasKernels(p, compute_capability)
             ? hopper::BackwardWorkspaceBytes(p)
             : portable::LayoutOf(p, deterministic).total();
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_
