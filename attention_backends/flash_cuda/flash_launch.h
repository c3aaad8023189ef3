#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FLASH_LAUNCH_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_FLASH_LAUNCH_H_

#include "absl/status/status.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "c10/core/Device.h"

namespace tessera {
namespace flash {

// Launch on LibTorch's current stream of `device`, which holds the params'
// data. Defined only in CUDA builds (framework/cuda/cuda_build.h).
absl::Status LaunchForward(const ForwardParams& params, c10::Device device);
absl::Status LaunchBackward(const BackwardParams& params, c10::Device device);

}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FLASH_LAUNCH_H_
