#include "attention_backends/flash_cuda/hopper/backward_launch.cuh"
#include "attention_backends/flash_cuda/hopper/launch.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/instructions.cuh"

namespace tessera {
namespace flash {
namespace hopper {

template <FloatType kType, int kHeadDim>
cudaError_t LaunchBackward(const BackwardParams& params, cudaStream_t stream) {
  using T = Element<kType>;
  if (!params.forward.causal() && !params.forward.full()) {
    return params.deterministic
               ? RunBackward<BackwardTraits<T, kHeadDim, false, true, true>>(
                     params, stream)
               : RunBackward<BackwardTraits<T, kHeadDim, false, false, true>>(
                     params, stream);
  }
  if (params.deterministic) {
    return params.forward.causal()
               ? RunBackward<BackwardTraits<T, kHeadDim, true, true>>(params,
                                                                      stream)
               : RunBackward<BackwardTraits<T, kHeadDim, false, true>>(params,
                                                                       stream);
  }
  return params.forward.causal()
             ? RunBackward<BackwardTraits<T, kHeadDim, true, false>>(params,
                                                                     stream)
             : RunBackward<BackwardTraits<T, kHeadDim, false, false>>(params,
                                                                      stream);
}

// BUILD.bazel compiles this file once for each element type and head dim.
template cudaError_t LaunchBackward<FloatType::TESSERA_ELEMENT,
                                    TESSERA_HEAD_DIM>(const BackwardParams&,
                                                      cudaStream_t);

}  // namespace hopper
}  // namespace flash
}  // namespace tessera
