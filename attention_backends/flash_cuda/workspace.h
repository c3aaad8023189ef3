#ifndef ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/workspace.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/portable/workspace.h"

// The scratch and shared memory that the kernels need. Includes no CUDA.

namespace tessera {
namespace flash {

// Whether the fp32 family runs p: FP32 that is not multiplied in TF32.
inline bool RunsInFp32(const ForwardParams& p) {
  return p.type == FloatType::kFloat && !p.tf32;
}

inline int64_t BackwardWorkspaceBytes(const ForwardParams& p,
                                      bool deterministic,
                                      int compute_capability) {
  if (RunsInFp32(p)) return fp32::BackwardWorkspaceBytes(p);
  return hopper::HasKernels(p, compute_capability)
             ? hopper::BackwardWorkspaceBytes(p, deterministic)
             : portable::LayoutOf(p, deterministic).total();
}

// The most shared memory per CUDA block of the kernels that run on every GPU.
inline int SharedBytes(const ForwardParams& p, bool needs_grad) {
  return RunsInFp32(p) ? fp32::SharedBytes(p, needs_grad)
                       : portable::SharedBytes(p, needs_grad);
}

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_WORKSPACE_H_
