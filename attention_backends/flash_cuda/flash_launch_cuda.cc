#include "ATen/cuda/CUDAContext.h"
#include "attention_backends/flash_cuda/flash_launch.h"
#include "attention_backends/flash_cuda/hopper/hopper_kernels.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/portable/portable_kernels.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "framework/cuda/cuda_status.h"

namespace tessera {
namespace flash {

bool BuiltWithCuda() { return true; }

int ComputeCapability(c10::Device device) {
  const cudaDeviceProp* const properties =
      at::cuda::getDeviceProperties(device.index());
  return 10 * properties->major + properties->minor;
}

absl::Status LaunchForward(const ForwardParams& params, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const bool on_hopper = hopper::HasKernels(params, ComputeCapability(device));
  return AsStatus(on_hopper ? hopper::Forward(params, stream)
                            : portable::Forward(params, stream),
                  "FLASH_CUDA's forward kernel");
}

absl::Status LaunchBackward(const BackwardParams& params, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const bool on_hopper =
      hopper::HasKernels(params.forward, ComputeCapability(device));
  return AsStatus(on_hopper ? hopper::Backward(params, stream)
                            : portable::Backward(params, stream),
                  "FLASH_CUDA's backward kernels");
}

}  // namespace flash
}  // namespace tessera
