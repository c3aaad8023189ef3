#include "attention_backends/flash_cuda/fp32/forward_kernel.cuh"
#include "attention_backends/flash_cuda/fp32/launch.h"
#include "attention_backends/flash_cuda/fp32/launch_shape.cuh"
#include "attention_backends/flash_cuda/launch_kernel.cuh"

namespace tessera {
namespace flash {
namespace fp32 {

template <int kHeadDim, bool kSoftCap>
cudaError_t LaunchForward(const ForwardParams& params, cudaStream_t stream) {
  using Large = LargeForwardTiles<kHeadDim>;
  using Small = SmallForwardTiles<kHeadDim>;
  const int64_t heads = params.h * params.b;
  const auto large = ShapeFor<Large>(params.s, Large::kQueries, heads);
  if (FillsDevice(large.blocks)) {
    return LaunchKernel(ForwardKernel<Large, kSoftCap>, large, stream, params);
  }
  return LaunchKernel(ForwardKernel<Small, kSoftCap>,
                      ShapeFor<Small>(params.s, Small::kQueries, heads), stream,
                      params);
}

// BUILD.bazel compiles this file once for each head dim, and for some again
// with a soft cap.
template cudaError_t LaunchForward<TESSERA_HEAD_DIM, TESSERA_SOFT_CAP>(
    const ForwardParams&, cudaStream_t);

}  // namespace fp32
}  // namespace flash
}  // namespace tessera
