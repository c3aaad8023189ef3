#include "attention_backends/flash_cuda/portable/portable_kernels.h"

#include "attention_backends/flash_cuda/portable/launch.h"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"

namespace tessera {
namespace flash {
namespace portable {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithHeadDim(params.d, [&](auto dim) {
    switch (params.type) {
      case FloatType::kBFloat16:
        return LaunchForward<FloatType::kBFloat16, dim()>(params, stream);
      case FloatType::kHalf:
        return LaunchForward<FloatType::kHalf, dim()>(params, stream);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  return WithHeadDim(params.forward.d, [&](auto dim) {
    switch (params.forward.type) {
      case FloatType::kBFloat16:
        return LaunchBackward<FloatType::kBFloat16, dim()>(params, stream);
      case FloatType::kHalf:
        return LaunchBackward<FloatType::kHalf, dim()>(params, stream);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera
