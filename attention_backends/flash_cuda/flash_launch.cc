#include "attention_backends/flash_cuda/flash_launch.h"

#include "attention_backends/flash_cuda/fp32/fp32_kernels.h"
#include "attention_backends/flash_cuda/hopper/hopper_kernels.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/portable/portable_kernels.h"
#include "attention_backends/flash_cuda/workspace.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/cuda/cuda_status.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace flash {

absl::Status LaunchForward(const ForwardParams& params, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto launch = [&] {
    if (RunsInFp32(params)) return fp32::Forward(params, stream);
    return hopper::HasKernels(params, ComputeCapability(device))
               ? hopper::Forward(params, stream)
               : portable::Forward(params, stream);
  };
  return AsStatus(launch(), "FLASH_CUDA's forward kernel");
}

absl::Status LaunchBackward(const BackwardParams& params, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto launch = [&] {
    if (RunsInFp32(params.forward)) return fp32::Backward(params, stream);
    return hopper::HasKernels(params.forward, ComputeCapability(device))
               ? hopper::Backward(params, stream)
               : portable::Backward(params, stream);
  };
  return AsStatus(launch(), "FLASH_CUDA's backward kernels");
}

}  // namespace flash
}  // namespace tessera
