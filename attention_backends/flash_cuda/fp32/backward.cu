#include <cstdint>

#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/backward_key_kernel.cuh"
#include "attention_backends/flash_cuda/fp32/backward_preprocess_kernel.cuh"
#include "attention_backends/flash_cuda/fp32/backward_query_kernel.cuh"
#include "attention_backends/flash_cuda/fp32/launch.h"
#include "attention_backends/flash_cuda/fp32/launch_shape.cuh"
#include "attention_backends/flash_cuda/launch_kernel.cuh"

namespace tessera {
namespace flash {
namespace fp32 {
namespace {

cudaError_t LaunchPreprocess(const BackwardParams& params,
                             RowStatistics* statistics, cudaStream_t stream) {
  const ForwardParams& p = params.forward;
  return LaunchKernel(params.deterministic ? BackwardPreprocessKernel<false>
                                           : BackwardPreprocessKernel<true>,
                      {.blocks = TilesOf(p.b * p.h * p.s, kPreprocessRows),
                       .threads = kPreprocessThreads,
                       .shared_bytes = 0},
                      stream, params, statistics);
}

// Computes dK and dV, and with kAddsDq also dQ.
template <int kHeadDim, bool kSoftCap, bool kAddsDq>
cudaError_t LaunchKeys(const BackwardParams& params,
                       const RowStatistics* statistics, cudaStream_t stream) {
  using Large = LargeBackwardTiles<kHeadDim>;
  using Small = SmallBackwardTiles<kHeadDim>;
  const ForwardParams& p = params.forward;
  const auto large = ShapeFor<Large>(p.t, Large::kHeld, p.g * p.b);
  if (FillsDevice(large.blocks)) {
    return LaunchKernel(BackwardKeyKernel<Large, kSoftCap, kAddsDq>, large,
                        stream, params, statistics);
  }
  return LaunchKernel(BackwardKeyKernel<Small, kSoftCap, kAddsDq>,
                      ShapeFor<Small>(p.t, Small::kHeld, p.g * p.b), stream,
                      params, statistics);
}

// Computes dQ in a fixed order.
template <int kHeadDim, bool kSoftCap>
cudaError_t LaunchQueries(const BackwardParams& params,
                          const RowStatistics* statistics,
                          cudaStream_t stream) {
  using Large = LargeBackwardTiles<kHeadDim>;
  using Small = SmallBackwardTiles<kHeadDim>;
  const ForwardParams& p = params.forward;
  const auto large = ShapeFor<Large>(p.s, Large::kHeld, p.h * p.b);
  if (FillsDevice(large.blocks)) {
    return LaunchKernel(BackwardQueryKernel<Large, kSoftCap>, large, stream,
                        params, statistics);
  }
  return LaunchKernel(BackwardQueryKernel<Small, kSoftCap>,
                      ShapeFor<Small>(p.s, Small::kHeld, p.h * p.b), stream,
                      params, statistics);
}

}  // namespace

template <int kHeadDim, bool kSoftCap>
cudaError_t LaunchBackward(const BackwardParams& params, cudaStream_t stream) {
  auto* const statistics = static_cast<RowStatistics*>(params.workspace);
  cudaError_t error = LaunchPreprocess(params, statistics, stream);
  if (error != cudaSuccess) return error;
  if (!params.deterministic) {
    return LaunchKeys<kHeadDim, kSoftCap, true>(params, statistics, stream);
  }
  error = LaunchKeys<kHeadDim, kSoftCap, false>(params, statistics, stream);
  if (error != cudaSuccess) return error;
  return LaunchQueries<kHeadDim, kSoftCap>(params, statistics, stream);
}

// BUILD.bazel compiles this file once for each head dim, and for some again
// with a soft cap.
template cudaError_t LaunchBackward<TESSERA_HEAD_DIM, TESSERA_SOFT_CAP>(
    const BackwardParams&, cudaStream_t);

}  // namespace fp32
}  // namespace flash
}  // namespace tessera
