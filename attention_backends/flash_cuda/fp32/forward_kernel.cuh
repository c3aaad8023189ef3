#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tasks.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// O = softmax(scale Q K^T + M) V, one block for each query tile of each head:
// FlashAttention-2 (Dao, arXiv:2307.08691), algorithm 1.

namespace tessera {
namespace flash {
namespace fp32 {

// A block's shared memory. Of P each warp uses its own rows only.
template <typename Tiles>
struct ForwardMemory {
  Tile<Tiles::kHeadDim> q{SharedFloats()};
  Tile<Tiles::kHeadDim> k{SharedFloats() + Tiles::kQSize};
  Tile<Tiles::kHeadDim> v{SharedFloats() + Tiles::kQSize + Tiles::kKSize};
  Tile<Tiles::kKeys> p{SharedFloats() + Tiles::kQSize + 2 * Tiles::kKSize};
};

// L of a thread's rows, of which one lane each writes it.
template <int kM>
__device__ __forceinline__ void StoreLogSums(const ForwardParams& params,
                                             const QueryTask& task, int row,
                                             const float (&log_sum)[kM]) {
  if (LaneCol(Lane()) != 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int query = task.queries.begin + row + m;
    if (query < task.mask.s) params.lse[task.lse_row + query] = log_sum[m];
  }
}

template <typename Tiles>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    ForwardKernel(const ForwardParams params) {
  constexpr int kM = Tiles::kRows, kKeys = Tiles::kKeys;
  const QueryTask task = FindQueryTask<Tiles::kQueries, kKeys>(params);
  const ForwardMemory<Tiles> memory;
  const int d = params.d, row = FirstRow<kM>();
  const auto load = [&](const Tile<Tiles::kHeadDim>& to, const HeadView& of,
                        int tile) {
    LoadTile<kKeys>(to, task.Keys(of, d), tile * kKeys);
  };

  float o[kM][Tiles::kHeadDim / kColLanes];
  Clear(o);
  OnlineSoftmax<kM> softmax(params.scale);
  if (task.key_tiles.end > task.key_tiles.begin) {
    LoadTile<Tiles::kQueries>(memory.q, task.Queries<const float>(params.q, d),
                              task.queries.begin);
    load(memory.k, params.k, task.key_tiles.end - 1);
  }
  for (int tile = task.key_tiles.end - 1; tile >= task.key_tiles.begin;
       --tile) {
    portable::WaitForCopies();
    __syncthreads();  // K is there, V and P have been read
    load(memory.v, params.v, tile);
    float s[kM][Tiles::kCols];
    MultiplyRows(memory.q, row, memory.k, d, s);
    if (task.mask.NeedsMask(task.queries, {tile * kKeys, (tile + 1) * kKeys})) {
      Hide<false>(task.mask, task.queries.begin + row, tile * kKeys, s);
    }
    softmax.Update(s, o);
    StageRows(memory.p, row, s);
    portable::WaitForCopies();
    __syncthreads();  // V and P are there, K has been read
    if (tile > task.key_tiles.begin) load(memory.k, params.k, tile - 1);
    MultiplyInto(memory.p, row, memory.v, o);
  }
  float log_sum[kM];
  softmax.Finish(o, log_sum);
  StoreRows(task.Queries<float>(params.o, d), task.queries.begin + row, 1, o);
  StoreLogSums(params, task, row, log_sum);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_
