#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/launch_kernel.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"
#include "attention_backends/flash_cuda/portable/backward_dq_sums.cuh"
#include "attention_backends/flash_cuda/portable/backward_key_kernel.cuh"
#include "attention_backends/flash_cuda/portable/backward_preprocess_kernel.cuh"
#include "attention_backends/flash_cuda/portable/backward_query_kernel.cuh"
#include "attention_backends/flash_cuda/portable/launch.h"
#include "attention_backends/flash_cuda/portable/workspace.h"

namespace tessera {
namespace flash {
namespace portable {
namespace {

int64_t Tiles(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

template <typename T, int kHeadDim>
cudaError_t LaunchPreprocess(const BackwardParams& params,
                             const BackwardScratch& scratch, int64_t sums,
                             cudaStream_t stream) {
  const ForwardParams& p = params.forward;
  return LaunchKernel(
      BackwardPreprocessKernel<T, kHeadDim>,
      {.blocks = Tiles(p.b * p.h * p.s,
                       kPreprocessThreads / kPreprocessLanes<T, kHeadDim>),
       .threads = kPreprocessThreads,
       .shared_bytes = 0},
      stream, params, scratch, sums);
}

template <typename T, int kHeadDim, bool kSoftCap, bool kAddsDq>
cudaError_t LaunchKeys(const BackwardParams& params,
                       const BackwardScratch& scratch, cudaStream_t stream) {
  using Sizes = BackwardTiles<kHeadDim, sizeof(T)>;
  const ForwardParams& p = params.forward;
  return LaunchKernel(BackwardKeyKernel<T, kHeadDim, kSoftCap, kAddsDq>,
                      {.blocks = Tiles(p.t, Sizes::kHeld) * p.g * p.b,
                       .threads = Sizes::kThreads,
                       .shared_bytes = Sizes::kSharedBytes},
                      stream, params, scratch);
}

// Computes dQ in a fixed order.
template <typename T, int kHeadDim, bool kSoftCap>
cudaError_t LaunchQueries(const BackwardParams& params,
                          const BackwardScratch& scratch, cudaStream_t stream) {
  using Sizes = BackwardTiles<kHeadDim, sizeof(T)>;
  const ForwardParams& p = params.forward;
  return LaunchKernel(BackwardQueryKernel<T, kHeadDim, kSoftCap>,
                      {.blocks = Tiles(p.s, Sizes::kHeld) * p.h * p.b,
                       .threads = Sizes::kThreads,
                       .shared_bytes = Sizes::kSharedBytes},
                      stream, params, scratch);
}

// Computes dQ from the sums.
template <typename T, int kHeadDim>
cudaError_t LaunchPostprocess(const BackwardParams& params,
                              const BackwardScratch& scratch,
                              cudaStream_t stream) {
  using Sizes = BackwardTiles<kHeadDim, sizeof(T)>;
  const ForwardParams& p = params.forward;
  return LaunchKernel(BackwardPostprocessKernel<T, kHeadDim>,
                      {.blocks = Tiles(p.s, Sizes::kStreamed) * p.h * p.b,
                       .threads = Sizes::kThreads,
                       .shared_bytes = Sizes::kStreamedBytes},
                      stream, params, scratch);
}

}  // namespace

template <FloatType kType, int kHeadDim, bool kSoftCap>
cudaError_t LaunchBackward(const BackwardParams& params, cudaStream_t stream) {
  using T = Element<kType>;
  const WorkspaceLayout layout = LayoutOf(params.forward, params.deterministic);
  char* const workspace = static_cast<char*>(params.workspace);
  const BackwardScratch scratch = {
      reinterpret_cast<RowStatistics*>(workspace),
      reinterpret_cast<float*>(workspace + layout.statistics_bytes)};
  cudaError_t error = LaunchPreprocess<T, kHeadDim>(
      params, scratch, layout.dq_bytes / int64_t{sizeof(float)}, stream);
  if (error != cudaSuccess) return error;
  if (params.deterministic) {
    error = LaunchKeys<T, kHeadDim, kSoftCap, false>(params, scratch, stream);
    if (error != cudaSuccess) return error;
    return LaunchQueries<T, kHeadDim, kSoftCap>(params, scratch, stream);
  }
  error = LaunchKeys<T, kHeadDim, kSoftCap, true>(params, scratch, stream);
  if (error != cudaSuccess) return error;
  return LaunchPostprocess<T, kHeadDim>(params, scratch, stream);
}

// BUILD.bazel compiles this file once for each element type and head dim, and
// for some again with a soft cap.
template cudaError_t
LaunchBackward<FloatType::TESSERA_ELEMENT, TESSERA_HEAD_DIM, TESSERA_SOFT_CAP>(
    const BackwardParams&, cudaStream_t);

}  // namespace portable
}  // namespace flash
}  // namespace tessera
