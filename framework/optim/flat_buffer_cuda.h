#ifndef FRAMEWORK_OPTIM_FLAT_BUFFER_CUDA_H_
#define FRAMEWORK_OPTIM_FLAT_BUFFER_CUDA_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/base/check.h"
#include "framework/optim/adamw_update.h"

namespace tessera {

// Dies for a dtype other than FP32, BF16 and FP16.
inline FlatDtype FlatDtypeOf(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return FlatDtype::kBFloat16;
  if (dtype == at::kHalf) return FlatDtype::kHalf;
  TESSERA_CHECK(dtype == at::kFloat, "a flat buffer is ", c10::toString(dtype));
  return FlatDtype::kFloat;
}

// The optimizer's kernels on LibTorch's current stream of the tensors' device.
// Unimplemented in a build without CUDA.

// sum, FP32 [1], = the sum of flat's squares.
absl::Status SumOfSquaresOnCuda(const at::Tensor& flat, const at::Tensor& sum);

// `prepared`: FP32 device scratch of sizeof(AdamWStep) bytes, which also names
// the device.
absl::Status UpdateAdamWOnCuda(const AdamWBuffers& buffers,
                               const AdamWScalars& scalars,
                               const AdamWOptions& options,
                               const at::Tensor& prepared);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_FLAT_BUFFER_CUDA_H_
