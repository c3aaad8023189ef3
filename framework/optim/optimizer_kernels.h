#ifndef FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_
#define FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/optim/adamw_update.h"
#include "framework/optim/ema_math.h"
#include "framework/optim/muon_math.h"
#include "framework/optim/symmetric_product.h"

namespace tessera {
namespace cuda {

// The optimizer's CUDA kernels, on LibTorch's current stream of the tensors'
// device. Only in CUDA builds (framework/cuda/cuda_build.h).

// SumOfSquares' two stages (gradient_norm.h): sums[s] of each segment of
// `flat`, and `total`, FP32 [1], of all sums.
absl::Status SumSegments(const at::Tensor& flat, const at::Tensor& segments,
                         const at::Tensor& sums);
absl::Status SumOfSegments(const at::Tensor& sums, const at::Tensor& total);

// adamw_kernel.h. `prepared` is FP32 memory for kMaxAdamWGroups
// AdamWCoefficients; its device is used.
absl::Status PrepareAdamW(const AdamWScalars& scalars,
                          const AdamWOptions& options,
                          const at::Tensor& prepared);
absl::Status UpdateAdamW(const AdamWBuffers& buffers, int64_t begin,
                         int64_t end, const bool* skips,
                         const at::Tensor& prepared);

// adamw_kernel.h. The device of `on` is used.
absl::Status PassEma(const AdamWBuffers& buffers, const EmaBuffers& ema,
                     EmaPass pass, int64_t begin, int64_t end,
                     const at::Tensor& on);

// muon_kernel.h. The device of `on` is used.
absl::Status UpdateMuonMomentum(const MuonBuffers& buffers,
                                const MuonOptions& options,
                                const at::Tensor& on);
absl::Status UpdateMuonRows(const MuonBuffers& buffers,
                            const MuonOptions& options, const at::Tensor& on);
absl::Status UpdateMuonWeights(const MuonBuffers& buffers,
                               const MuonOptions& options,
                               const at::Tensor& on);

// symmetric_product_kernel.h, of tensors as in symmetric_product.h.
absl::Status MultiplySymmetric(const at::Tensor& d, const at::Tensor& a,
                               const at::Tensor& b, const SymmetricSum& sum,
                               const at::Tensor& c);

}  // namespace cuda
}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_OPTIMIZER_KERNELS_H_
