#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_LAUNCH_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/hopper/forward_kernel.cuh"
#include "attention_backends/flash_cuda/launch_kernel.cuh"
#include "framework/cuda/hopper/tensor_map.h"

namespace tessera {
namespace flash {
namespace hopper {

// Without a mask, heads run one after the other, so that K and V are read into
// L2 only once. Otherwise tiles differ in length: tiles of the same length run
// together, for as many heads as fill this much of the 50 MB of L2.
inline constexpr int64_t kMaskedSectionBytes = int64_t{32} << 20;

inline TileScheduler MakeScheduler(const ForwardParams& p, int tile_rows) {
  const int64_t bytes_per_head = 2 * p.t * p.d * 2;
  const int64_t kv_heads =
      p.full() ? 1 : std::max<int64_t>(1, kMaskedSectionBytes / bytes_per_head);
  TileScheduler scheduler;
  scheduler.tiles = static_cast<int>((p.s + tile_rows - 1) / tile_rows);
  scheduler.heads = static_cast<int>(p.h * p.b);
  scheduler.section = static_cast<int>(
      std::min<int64_t>(scheduler.heads, kv_heads * (p.h / p.g)));
  return scheduler;
}

template <typename Traits>
cudaError_t MakeForwardMaps(const ForwardParams& p, ForwardMaps* maps) {
  const auto make = [&](const HeadView& view, int64_t heads, int64_t rows,
                        int box_rows, CUtensorMap* map) {
    return MakeTensorMap({.type = p.type,
                          .view = view,
                          .batch = p.b,
                          .heads = heads,
                          .rows = rows,
                          .columns = p.d,
                          .box_rows = box_rows,
                          .box_columns = Traits::QTile::kWidth},
                         map);
  };
  cudaError_t error = make(p.q, p.h, p.s, Traits::kQueries, &maps->q);
  if (error == cudaSuccess) {
    error = make(p.k, p.g, p.t, Traits::kKeys, &maps->k);
  }
  if (error == cudaSuccess) {
    error = make(p.v, p.g, p.t, Traits::kKeys, &maps->v);
  }
  if (error == cudaSuccess) error = make(p.o, p.h, p.s, 64, &maps->o);
  return error;
}

template <typename Traits>
cudaError_t RunForward(const ForwardParams& p, cudaStream_t stream) {
  ForwardMaps maps;
  cudaError_t error = MakeForwardMaps<Traits>(p, &maps);
  if (error != cudaSuccess) return error;
  const ForwardArgs args = {.scheduler = MakeScheduler(p, Traits::kQueries),
                            .s = static_cast<int>(p.s),
                            .t = static_cast<int>(p.t),
                            .heads = static_cast<int>(p.h),
                            .group = static_cast<int>(p.h / p.g),
                            .scale_log2 = p.scale * kLog2E,
                            .lse = p.lse,
                            .next_tile = p.counter,
                            .before = p.before,
                            .after = p.after,
                            .document_begin = p.document_begin,
                            .document_end = p.document_end};
  int device = 0, multiprocessors = 0;
  error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors,
                                 cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(p.counter, 0, sizeof(int), stream);
  if (error != cudaSuccess) return error;
  constexpr int kSharedBytes = sizeof(ForwardShared<Traits>);
  static_assert(kSharedBytes <= 227 * 1024);
  return LaunchKernel(
      ForwardKernel<Traits>,
      {.blocks = std::min(multiprocessors, args.scheduler.count()),
       .threads = Traits::kThreads,
       .shared_bytes = kSharedBytes},
      stream, maps, args);
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_FORWARD_LAUNCH_CUH_
