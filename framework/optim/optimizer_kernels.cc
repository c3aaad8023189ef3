#include "framework/optim/optimizer_kernels.h"

#include <ATen/ATen.h>

#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/optim/adamw_kernel.h"
#include "framework/optim/sum_of_squares_kernel.h"

namespace tessera {
namespace cuda {

absl::Status SumOfSquares(const at::Tensor& flat, const at::Tensor& sum) {
  const at::Tensor partial = at::empty({kSumOfSquaresBlocks}, sum.options());
  return Launch(flat, "the gradient norm's kernel", LaunchSumOfSquares,
                flat.const_data_ptr(), FloatTypeOf(flat), flat.numel(),
                partial.data_ptr<float>(), sum.data_ptr<float>());
}

absl::Status PrepareAdamW(const AdamWScalars& scalars,
                          const AdamWOptions& options,
                          const at::Tensor& prepared) {
  return Launch(prepared, "AdamW's kernel", LaunchAdamWPrepare, scalars,
                options, static_cast<AdamWCoefficients*>(prepared.data_ptr()));
}

absl::Status UpdateAdamW(const AdamWBuffers& buffers, int64_t begin,
                         int64_t end, const bool* skips,
                         const at::Tensor& prepared) {
  return Launch(prepared, "AdamW's kernel", LaunchAdamWUpdate, buffers, begin,
                end, skips,
                static_cast<const AdamWCoefficients*>(prepared.data_ptr()));
}

}  // namespace cuda
}  // namespace tessera
