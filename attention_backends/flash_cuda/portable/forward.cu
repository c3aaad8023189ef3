#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/launch_kernel.cuh"
#include "attention_backends/flash_cuda/portable/forward_kernel.cuh"
#include "attention_backends/flash_cuda/portable/launch.h"

namespace tessera {
namespace flash {
namespace portable {

template <FloatType kType, int kHeadDim, bool kSoftCap>
cudaError_t LaunchForward(const ForwardParams& params, cudaStream_t stream) {
  using T = Element<kType>;
  using Tiles = ForwardTiles<kHeadDim, sizeof(T)>;
  const int64_t query_tiles =
      (params.s + Tiles::kQueries - 1) / Tiles::kQueries;
  return LaunchKernel(ForwardKernel<T, kHeadDim, kSoftCap>,
                      {.blocks = query_tiles * params.h * params.b,
                       .threads = Tiles::kThreads,
                       .shared_bytes = Tiles::kSharedBytes},
                      stream, params);
}

// BUILD.bazel compiles this file once for each element type and head dim, and
// for some again with a soft cap.
template cudaError_t LaunchForward<FloatType::TESSERA_ELEMENT, TESSERA_HEAD_DIM,
                                   TESSERA_SOFT_CAP>(const ForwardParams&,
                                                     cudaStream_t);

}  // namespace portable
}  // namespace flash
}  // namespace tessera
