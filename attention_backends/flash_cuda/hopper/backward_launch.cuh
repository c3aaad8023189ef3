#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAUNCH_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/hopper/backward_kernel.cuh"
#include "attention_backends/flash_cuda/hopper/backward_pre_post.cuh"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "attention_backends/flash_cuda/launch_kernel.cuh"
#include "framework/cuda/hopper/tensor_map.h"

namespace tessera {
namespace flash {
namespace hopper {

template <typename Traits>
cudaError_t MakeBackwardMaps(const BackwardParams& params, BackwardMaps* maps) {
  const ForwardParams& p = params.forward;
  const struct {
    const HeadView& view;
    int64_t heads, rows;
    int box_rows;
    CUtensorMap* map;
  } wanted[] = {{p.q, p.h, p.s, Traits::kQueries, &maps->q},
                {params.d_o, p.h, p.s, Traits::kQueries, &maps->d_o},
                {p.k, p.g, p.t, Traits::kKeys, &maps->k},
                {p.v, p.g, p.t, Traits::kKeys, &maps->v},
                {params.dk, p.g, p.t, 64, &maps->dk},
                {params.dv, p.g, p.t, 64, &maps->dv}};
  for (const auto& [view, heads, rows, box_rows, map] : wanted) {
    const cudaError_t error =
        MakeTensorMap({.type = p.type,
                       .view = view,
                       .batch = p.b,
                       .heads = heads,
                       .rows = rows,
                       .columns = p.d,
                       .box_rows = box_rows,
                       .box_columns = Traits::KTile::kWidth},
                      map);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Heads run in sections whose Q, dO and sums of dQ stay in L2: at most
// kSectionBytes, and of equal size, since the blocks of a small last section
// are too few for all multiprocessors. The deterministic kernel has larger
// sections, so that successive CUDA blocks of one head, which wait for each
// other, are further apart.
template <typename Traits>
TileScheduler MakeBackwardScheduler(const ForwardParams& p) {
  constexpr int64_t kSectionBytes = int64_t{Traits::kDeterministic ? 16 : 8}
                                    << 20;
  const int64_t bytes_per_head = p.h / p.g * p.s * p.d * (2 + 2 + 4);
  TileScheduler scheduler;
  scheduler.tiles = static_cast<int>((p.t + Traits::kKeys - 1) / Traits::kKeys);
  scheduler.heads = static_cast<int>(p.b * p.g);
  const int most = static_cast<int>(
      std::clamp<int64_t>(kSectionBytes / bytes_per_head, 1, scheduler.heads));
  const int sections = (scheduler.heads + most - 1) / most;
  scheduler.section = (scheduler.heads + sections - 1) / sections;
  return scheduler;
}

// The deterministic kernel hands out the longest tiles first if there are at
// most this many keys. With few tiles per multiprocessor, the tiles that run
// last decide when the kernel ends. With many, blocks that begin at the same
// queries wait for each other longer than that saves. Measured on an H100
// (docs/flash_hopper_log.md).
inline constexpr int64_t kLongestFirstKeys = 1024;

template <typename Traits>
cudaError_t RunMain(const BackwardParams& params,
                    const BackwardScratch& scratch, cudaStream_t stream) {
  const ForwardParams& p = params.forward;
  BackwardMaps maps;
  cudaError_t error = MakeBackwardMaps<Traits>(params, &maps);
  if (error != cudaSuccess) return error;
  const BackwardArgs args = {.scheduler = MakeBackwardScheduler<Traits>(p),
                             .s = static_cast<int>(p.s),
                             .t = static_cast<int>(p.t),
                             .kv_heads = static_cast<int>(p.g),
                             .group = static_cast<int>(p.h / p.g),
                             .longest_first = p.t <= kLongestFirstKeys,
                             .scale = p.scale,
                             .scale_log2 = p.scale * kLog2E,
                             .scratch = scratch,
                             .before = p.before,
                             .after = p.after,
                             .document_begin = p.document_begin,
                             .document_end = p.document_end};
  constexpr int kSharedBytes = sizeof(BackwardShared<Traits>);
  static_assert(kSharedBytes <= 227 * 1024);
  return LaunchKernel(BackwardKernel<Traits>,
                      {.blocks = args.scheduler.count(),
                       .threads = Traits::kThreads,
                       .shared_bytes = kSharedBytes},
                      stream, maps, args);
}

template <typename Traits>
cudaError_t RunBackward(const BackwardParams& params, cudaStream_t stream) {
  using Element = typename Traits::Element;
  using Dq = typename Traits::Dq;
  const ForwardParams& p = params.forward;
  const ScratchSizes<Dq> sizes(p);
  BackwardScratch scratch;
  scratch.dq = static_cast<float*>(params.workspace);
  scratch.turns = reinterpret_cast<int*>(scratch.dq + sizes.dq);
  scratch.taken = scratch.turns + sizes.tiles;
  scratch.lse2 = scratch.dq + sizes.sums();
  scratch.delta = scratch.lse2 + sizes.rows;
  const RowArgs rows = {.o = p.o,
                        .d_o = params.d_o,
                        .dq = params.dq,
                        .lse = p.lse,
                        .s = static_cast<int>(p.s),
                        .h = static_cast<int>(p.h),
                        .d = static_cast<int>(p.d),
                        .scale = p.scale,
                        .scratch = scratch};
  cudaError_t error = LaunchKernel(
      BackwardPreprocessKernel<Element, Dq, Traits::kDeterministic>,
      {.blocks = sizes.rows / RowShare<Dq::kHeadDim>::kRows,
       .threads = kRowThreads,
       .shared_bytes = 0},
      stream, rows);
  if (error != cudaSuccess) return error;
  error = RunMain<Traits>(params, scratch, stream);
  if (error != cudaSuccess) return error;
  return LaunchKernel(
      BackwardPostprocessKernel<Element, Dq, Traits::kDeterministic>,
      {.blocks = sizes.tiles, .threads = kRowThreads, .shared_bytes = 0},
      stream, rows);
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_LAUNCH_CUH_
