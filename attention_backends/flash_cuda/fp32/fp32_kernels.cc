#include "attention_backends/flash_cuda/fp32/fp32_kernels.h"

#include "attention_backends/flash_cuda/fp32/launch.h"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

namespace tessera {
namespace flash {
namespace fp32 {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithHeadDim(
      params.d, [&](auto dim) { return LaunchForward<dim()>(params, stream); });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  return WithHeadDim(params.forward.d, [&](auto dim) {
    return LaunchBackward<dim()>(params, stream);
  });
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera
