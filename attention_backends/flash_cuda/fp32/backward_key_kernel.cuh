#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/async_copy.cuh"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/backward_dq_sums.cuh"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_scheduler.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/soft_cap.cuh"

// dK and dV: a CUDA block per key tile of each key head steps over the tiles of
// all queries that read the head, in a fixed order. Scores are transposed, S^T
// = K Q^T, so that a warp owns the rows of dV = P^T dO and dK = dS^T Q. With
// kAddsDq every step also adds its part of dQ to dQ, in no fixed order: five
// products instead of seven with a separate kernel for dQ.

namespace tessera {
namespace flash {
namespace fp32 {

// Starts copying the rows of Q or dO, `cols` columns wide, that a step reads.
template <typename Tiles>
__device__ __forceinline__ void LoadStep(const HeadView& of, int cols,
                                         const KeyTile& held, QueryStep step,
                                         const Tile<Tiles::kHeadDim>& to) {
  constexpr int kStreamed = Tiles::kStreamed;
  LoadTile<kStreamed>(to, held.Queries<const float>(of, step.head, cols),
                      step.tile * kStreamed);
}

// Starts copying the statistics of a step's queries; zeros beyond the last
// query.
template <typename Tiles>
__device__ __forceinline__ void LoadStepStatistics(
    const ForwardParams& p, const RowStatistics* statistics,
    const KeyTile& held, QueryStep step) {
  constexpr int kStreamed = Tiles::kStreamed;
  const int i = threadIdx.x;
  if (i >= kStreamed) return;
  const int64_t head = static_cast<int64_t>(held.batch) * p.h + step.head;
  const int query = step.tile * kStreamed + i;
  const bool exists = query < held.mask.s;
  CopyOrZero8(SharedAddress(BackwardMemory<Tiles>().Statistics() + i),
              statistics + head * p.s + (exists ? query : 0), exists);
}

// Turns scores into P^T, and dP^T into dS^T / scale.
template <typename Tiles, bool kSoftCap, int kM, int kN>
__device__ __forceinline__ void ToKeyGradients(float scale, float (&p)[kM][kN],
                                               float (&ds)[kM][kN]) {
  const RowStatistics* const statistics = BackwardMemory<Tiles>().Statistics();
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const RowStatistics of_query = statistics[ColumnOf(Lane(), n)];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      ToGradients<kSoftCap>(scale, of_query, &p[m][n], &ds[m][n]);
    }
  }
}

// A thread's part of dK and dV.
template <typename Tiles>
using KeyGradients = float[Tiles::kRows][Tiles::kHeadDim / kColLanes];

// One step: dV += P^T dO, dK += dS^T Q / scale, and dQ. The caller has started
// copying dO; the copy of the next step's dO is in flight on return.
template <typename Tiles, bool kSoftCap, bool kAddsDq>
__device__ __forceinline__ void StepOverQueries(const BackwardParams& params,
                                                const RowStatistics* statistics,
                                                const KeyTile& held,
                                                QueryStep step,
                                                KeyGradients<Tiles> (&dkv)[2]) {
  const ForwardParams& p = params.forward;
  const BackwardMemory<Tiles> memory;
  const auto q = memory.Streamed(0), d_o = memory.Streamed(1);
  const auto gradients = memory.Gradients();
  const int d = p.d, row = FirstRow<Tiles::kRows>();
  const int first_query = step.tile * Tiles::kStreamed;
  float scores[Tiles::kRows][Tiles::kCols], ds[Tiles::kRows][Tiles::kCols];
  WaitForCopies();
  __syncthreads();  // dO has arrived, the last Q has been read
  LoadStep<Tiles>(p.q, d, held, step, q);
  LoadStepStatistics<Tiles>(p, statistics, held, step);
  MultiplyRows(memory.Held(1), row, d_o, d, ds);
  WaitForCopies();
  __syncthreads();  // Q has arrived
  MultiplyRows(memory.Held(0), row, q, d, scores);
  ApplySoftCap<kSoftCap>(p, scores);
  if (held.mask.NeedsMask({first_query, first_query + Tiles::kStreamed},
                          {held.first_key, held.first_key + Tiles::kHeld})) {
    ApplyMask<true>(held.mask, held.first_key + row, first_query, scores);
  }
  ToKeyGradients<Tiles, kSoftCap>(ScoreScale<kSoftCap>(p), scores, ds);
  StageRows(gradients, row, scores);
  __syncwarp();
  MultiplyInto(gradients, row, d_o, dkv[1]);
  __syncthreads();  // dO and P have been read
  const QueryStep next = held.After(step);
  if (held.IsStep(next)) LoadStep<Tiles>(params.d_o, d, held, next, d_o);
  StageRows(gradients, row, ds);
  __syncwarp();
  MultiplyInto(gradients, row, q, dkv[0]);
  if constexpr (kAddsDq) {
    AddDq<Tiles>(held.Queries<float>(params.dq, step.head, d), first_query,
                 p.scale);
  }
}

template <typename Tiles, bool kSoftCap, bool kAddsDq>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    BackwardKeyKernel(const BackwardParams params,
                      const RowStatistics* statistics) {
  const ForwardParams& p = params.forward;
  const KeyTile held = FindKeyTile<Tiles::kHeld, Tiles::kStreamed>(p);
  const BackwardMemory<Tiles> memory;
  const int d = p.d, key = held.first_key + FirstRow<Tiles::kRows>();

  KeyGradients<Tiles> dkv[2];
  Clear(dkv[0]);
  Clear(dkv[1]);
  QueryStep step = held.FirstStep();
  if (held.IsStep(step)) {
    LoadTile<Tiles::kHeld>(memory.Held(0), held.Keys<const float>(p.k, d),
                           held.first_key);
    LoadTile<Tiles::kHeld>(memory.Held(1), held.Keys<const float>(p.v, d),
                           held.first_key);
    LoadStep<Tiles>(params.d_o, d, held, step, memory.Streamed(1));
  }
  for (; held.IsStep(step); step = held.After(step)) {
    StepOverQueries<Tiles, kSoftCap, kAddsDq>(params, statistics, held, step,
                                              dkv);
  }
  StoreRows(held.Keys<float>(params.dk, d), key, p.scale, dkv[0]);
  StoreRows(held.Keys<float>(params.dv, d), key, 1, dkv[1]);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_
