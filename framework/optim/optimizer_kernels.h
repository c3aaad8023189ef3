#ifndef FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/optim/adamw_update.h"

namespace tessera {
namespace cuda {

// The optimizer's CUDA kernels, on LibTorch's current stream of the tensors'
// device. Only in CUDA builds (framework/cuda/cuda_build.h).

// Writes the sum of flat's squares to `sum`, FP32 [1].
absl::Status SumOfSquares(const at::Tensor& flat, const at::Tensor& sum);

// adamw_kernel.h. `prepared` is FP32 memory for kMaxAdamWGroups
// AdamWCoefficients; its device is used.
absl::Status PrepareAdamW(const AdamWScalars& scalars,
                          const AdamWOptions& options,
                          const at::Tensor& prepared);
absl::Status UpdateAdamW(const AdamWBuffers& buffers, int64_t begin,
                         int64_t end, const bool* skips,
                         const at::Tensor& prepared);

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_
