#include "attention_backends/flash_cuda/hopper/hopper_kernels.h"

#include "attention_backends/flash_cuda/hopper/launch.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"

namespace tessera {
namespace flash {
namespace hopper {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithHeadDim(params.d, [&](auto dim) {
    return params.type == FloatType::kHalf
               ? LaunchForward<FloatType::kHalf, dim()>(params, stream)
               : LaunchForward<FloatType::kBFloat16, dim()>(params, stream);
  });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  return WithHeadDim(params.forward.d, [&](auto dim) {
    return params.forward.type == FloatType::kHalf
               ? LaunchBackward<FloatType::kHalf, dim()>(params, stream)
               : LaunchBackward<FloatType::kBFloat16, dim()>(params, stream);
  });
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera
