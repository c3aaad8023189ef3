#include "attention_backends/flash_cuda/fp32/fp32_kernels.h"

#include "attention_backends/flash_cuda/fp32/launch.h"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

namespace tessera {
namespace flash {
namespace fp32 {

cudaError_t Forward(const ForwardParams& params, cudaStream_t stream) {
  return WithKernels(params, [&](auto dim, auto soft_cap) {
    return LaunchForward<dim(), soft_cap()>(params, stream);
  });
}

cudaError_t Backward(const BackwardParams& params, cudaStream_t stream) {
  return WithKernels(params.forward, [&](auto dim, auto soft_cap) {
    return LaunchBackward<dim(), soft_cap()>(params, stream);
  });
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera
