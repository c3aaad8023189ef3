#ifndef FRAMEWORK_CUDA_LAUNCH_H_
#define FRAMEWORK_CUDA_LAUNCH_H_

#include "ATen/core/Tensor.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {

// Launches our kernels from LibTorch tensors. For sources that only CUDA builds
// compile.

// Calls launch(params..., stream) for LibTorch's current stream on the device
// of `on`. `name` is used in errors: "AdamW's kernel".
template <typename Fn, typename... Params>
absl::Status Launch(const at::Tensor& on, absl::string_view name,
                    const Fn& launch, const Params&... params) {
  const c10::cuda::CUDAGuard guard(on.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  return AsStatus(launch(params..., stream), name);
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_LAUNCH_H_
