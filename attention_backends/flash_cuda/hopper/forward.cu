#include "attention_backends/flash_cuda/hopper/forward_launch.cuh"
#include "attention_backends/flash_cuda/hopper/launch.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/instructions.cuh"

namespace tessera {
namespace flash {
namespace hopper {
namespace {

template <FloatType kType, int kHeadDim, bool kCausal, bool kShort,
          bool kAnyMask = false>
cudaError_t Run(const ForwardParams& params, cudaStream_t stream) {
  constexpr ForwardTileSize kTile =
      ForwardTileSizeOf(kHeadDim, kCausal || kAnyMask, kShort);
  return RunForward<ForwardTraits<Element<kType>, kHeadDim, kTile.warpgroups,
                                  kTile.keys, kCausal, kAnyMask>>(params,
                                                                  stream);
}

}  // namespace

template <FloatType kType, int kHeadDim>
cudaError_t LaunchForward(const ForwardParams& params, cudaStream_t stream) {
  if (!params.causal() && !params.full()) {  // most rows see few keys
    return Run<kType, kHeadDim, false, true, true>(params, stream);
  }
  if (params.t <= kShortRows) {
    return params.causal() ? Run<kType, kHeadDim, true, true>(params, stream)
                           : Run<kType, kHeadDim, false, true>(params, stream);
  }
  return params.causal() ? Run<kType, kHeadDim, true, false>(params, stream)
                         : Run<kType, kHeadDim, false, false>(params, stream);
}

// BUILD.bazel compiles this file once for each element type and head dim.
template cudaError_t LaunchForward<FloatType::TESSERA_ELEMENT,
                                   TESSERA_HEAD_DIM>(const ForwardParams&,
                                                     cudaStream_t);

}  // namespace hopper
}  // namespace flash
}  // namespace tessera
