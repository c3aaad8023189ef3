#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_scheduler.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/soft_cap.cuh"

// O = softmax(scale Q K^T + M) V with a CUDA block per query tile of each head:
// FlashAttention-2 (Dao, arXiv:2307.08691), Algorithm 1.

namespace tessera {
namespace flash {
namespace fp32 {

// A CUDA block's shared memory. A warp uses only its own rows of P.
template <typename Tiles>
struct ForwardMemory {
  Tile<Tiles::kHeadDim> q{SharedFloats()};
  Tile<Tiles::kHeadDim> k{SharedFloats() + Tiles::kQSize};
  Tile<Tiles::kHeadDim> v{SharedFloats() + Tiles::kQSize + Tiles::kKSize};
  Tile<Tiles::kKeys> p{SharedFloats() + Tiles::kQSize + 2 * Tiles::kKSize};
};

// Writes L of a thread's rows, by one lane per row.
template <int kM>
__device__ __forceinline__ void StoreLse(const ForwardParams& params,
                                         const QueryTile& held, int row,
                                         const float (&lse)[kM]) {
  if (LaneCol(Lane()) != 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int query = held.queries.begin + row + m;
    if (query < held.mask.s) params.lse[held.lse_row + query] = lse[m];
  }
}

template <typename Tiles, bool kSoftCap>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    ForwardKernel(const ForwardParams params) {
  constexpr int kM = Tiles::kRows, kKeys = Tiles::kKeys;
  const QueryTile held = FindQueryTile<Tiles::kQueries, kKeys>(params);
  const ForwardMemory<Tiles> memory;
  const int d = params.d, row = FirstRow<kM>();
  const auto load = [&](const Tile<Tiles::kHeadDim>& to, const HeadView& of,
                        int tile) {
    LoadTile<kKeys>(to, held.Keys(of, d), tile * kKeys);
  };

  float o[kM][Tiles::kHeadDim / kColLanes];
  Clear(o);
  OnlineSoftmax<kM> softmax(ScoreScale<kSoftCap>(params));
  if (held.key_tiles.end > held.key_tiles.begin) {
    LoadTile<Tiles::kQueries>(memory.q, held.Queries<const float>(params.q, d),
                              held.queries.begin);
    load(memory.k, params.k, held.key_tiles.end - 1);
  }
  for (int tile = held.key_tiles.end - 1; tile >= held.key_tiles.begin;
       --tile) {
    WaitForCopies();
    __syncthreads();  // K has arrived, the last V and P have been read
    load(memory.v, params.v, tile);
    float s[kM][Tiles::kCols];
    MultiplyRows(memory.q, row, memory.k, d, s);
    ApplySoftCap<kSoftCap>(params, s);
    if (held.mask.NeedsMask(held.queries, {tile * kKeys, (tile + 1) * kKeys})) {
      ApplyMask<false>(held.mask, held.queries.begin + row, tile * kKeys, s);
    }
    softmax.Update(s, o);
    StageRows(memory.p, row, s);
    WaitForCopies();
    __syncthreads();  // V has arrived, P is written, K has been read
    if (tile > held.key_tiles.begin) load(memory.k, params.k, tile - 1);
    MultiplyInto(memory.p, row, memory.v, o);
  }
  float lse[kM];
  softmax.Finish(o, lse);
  StoreRows(held.Queries<float>(params.o, d), held.queries.begin + row, 1, o);
  StoreLse(params, held, row, lse);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_FORWARD_KERNEL_CUH_
