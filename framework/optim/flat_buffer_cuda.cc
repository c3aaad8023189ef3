#include "framework/optim/flat_buffer_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "framework/cuda/cuda_status.h"
#include "framework/optim/adamw_kernel.h"
#include "framework/optim/sum_of_squares_kernel.h"

namespace tessera {

absl::Status SumOfSquaresOnCuda(const at::Tensor& flat, const at::Tensor& sum) {
  const c10::cuda::CUDAGuard guard(flat.device());
  const at::Tensor partial = at::empty({kSumOfSquaresBlocks}, sum.options());
  return AsStatus(LaunchSumOfSquares(
                      flat.const_data_ptr(), FlatDtypeOf(flat.scalar_type()),
                      flat.numel(), partial.data_ptr<float>(),
                      sum.data_ptr<float>(), c10::cuda::getCurrentCUDAStream()),
                  "the gradient norm's kernel");
}

absl::Status UpdateAdamWOnCuda(const AdamWBuffers& buffers,
                               const AdamWScalars& scalars,
                               const AdamWOptions& options,
                               const at::Tensor& prepared) {
  const c10::cuda::CUDAGuard guard(prepared.device());
  return AsStatus(LaunchAdamW(buffers, scalars, options,
                              static_cast<AdamWStep*>(prepared.data_ptr()),
                              c10::cuda::getCurrentCUDAStream()),
                  "AdamW's kernel");
}

}  // namespace tessera
