#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/backward_dq_sums.cuh"
#include "attention_backends/flash_cuda/fp32/multiply.cuh"
#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tasks.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

// dK and dV, one block for each key tile of each key head: it visits the tiles
// of all queries that read the head, in a fixed order. Scores are transposed,
// S^T = K Q^T, so that a warp owns the rows of dV = P^T dO and dK = dS^T Q.
// With kAddsDq every visit also adds its part of dQ, in no fixed order, to dQ
// itself: five products instead of the seven that a separate dQ kernel makes of
// it.

namespace tessera {
namespace flash {
namespace fp32 {

// Starts copying the rows of Q or dO, `cols` columns, that a visit reads.
template <typename Tiles>
__device__ __forceinline__ void LoadVisit(const HeadView& of, int cols,
                                          const KeyTask& task, QueryVisit visit,
                                          const Tile<Tiles::kHeadDim>& to) {
  constexpr int kVisiting = Tiles::kVisiting;
  LoadTile<kVisiting>(to, task.Queries<const float>(of, visit.head, cols),
                      visit.tile * kVisiting);
}

// Starts copying the statistics of a visit's queries; zeros where there is
// none.
template <typename Tiles>
__device__ __forceinline__ void LoadVisitStatistics(
    const ForwardParams& p, const RowStatistics* statistics,
    const KeyTask& task, QueryVisit visit) {
  constexpr int kVisiting = Tiles::kVisiting;
  const int i = threadIdx.x;
  if (i >= kVisiting) return;
  const int64_t head = static_cast<int64_t>(task.batch) * p.h + visit.head;
  const int query = visit.tile * kVisiting + i;
  const bool exists = query < task.mask.s;
  portable::CopyOrZero8(SharedAddress(BackwardMemory<Tiles>().Statistics() + i),
                        statistics + head * p.s + (exists ? query : 0), exists);
}

// Scores become P^T and dP^T becomes dS^T / scale.
template <typename Tiles, int kM, int kN>
__device__ __forceinline__ void ToKeyGradients(float scale, float (&p)[kM][kN],
                                               float (&ds)[kM][kN]) {
  const RowStatistics* const statistics = BackwardMemory<Tiles>().Statistics();
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const RowStatistics of_query = statistics[ColumnOf(Lane(), n)];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      ToGradients(scale, of_query, &p[m][n], &ds[m][n]);
    }
  }
}

// A thread's part of dK and dV.
template <typename Tiles>
using KeyGradients = float[Tiles::kRows][Tiles::kHeadDim / kColLanes];

// One visit: dV += P^T dO, dK += dS^T Q / scale, and dQ. dO is on its way; the
// next visit's is when this returns.
template <typename Tiles, bool kAddsDq>
__device__ __forceinline__ void VisitQueries(const BackwardParams& params,
                                             const RowStatistics* statistics,
                                             const KeyTask& task,
                                             QueryVisit visit,
                                             KeyGradients<Tiles> (&dkv)[2]) {
  const ForwardParams& p = params.forward;
  const BackwardMemory<Tiles> memory;
  const auto q = memory.Visiting(0), d_o = memory.Visiting(1);
  const auto gradients = memory.Gradients();
  const int d = p.d, row = FirstRow<Tiles::kRows>();
  const int first_query = visit.tile * Tiles::kVisiting;
  float scores[Tiles::kRows][Tiles::kCols], ds[Tiles::kRows][Tiles::kCols];
  portable::WaitForCopies();
  __syncthreads();  // dO is there, Q has been read
  LoadVisit<Tiles>(p.q, d, task, visit, q);
  LoadVisitStatistics<Tiles>(p, statistics, task, visit);
  MultiplyRows(memory.Held(1), row, d_o, d, ds);
  portable::WaitForCopies();
  __syncthreads();  // Q is there
  MultiplyRows(memory.Held(0), row, q, d, scores);
  if (task.mask.NeedsMask({first_query, first_query + Tiles::kVisiting},
                          {task.first_key, task.first_key + Tiles::kHeld})) {
    Hide<true>(task.mask, task.first_key + row, first_query, scores);
  }
  ToKeyGradients<Tiles>(p.scale, scores, ds);
  StageRows(gradients, row, scores);
  __syncwarp();
  MultiplyInto(gradients, row, d_o, dkv[1]);
  __syncthreads();  // dO and P have been read
  const QueryVisit next = task.After(visit);
  if (task.IsVisit(next)) LoadVisit<Tiles>(params.d_o, d, task, next, d_o);
  StageRows(gradients, row, ds);
  __syncwarp();
  MultiplyInto(gradients, row, q, dkv[0]);
  if constexpr (kAddsDq) {
    AddDq<Tiles>(task.Queries<float>(params.dq, visit.head, d), first_query,
                 p.scale);
  }
}

template <typename Tiles, bool kAddsDq>
__global__ void __launch_bounds__(kThreads, Tiles::kBlocks)
    BackwardKeyKernel(const BackwardParams params,
                      const RowStatistics* statistics) {
  const ForwardParams& p = params.forward;
  const KeyTask task = FindKeyTask<Tiles::kHeld, Tiles::kVisiting>(p);
  const BackwardMemory<Tiles> memory;
  const int d = p.d, key = task.first_key + FirstRow<Tiles::kRows>();

  KeyGradients<Tiles> dkv[2];
  Clear(dkv[0]);
  Clear(dkv[1]);
  QueryVisit visit = task.FirstVisit();
  LoadTile<Tiles::kHeld>(memory.Held(0), task.Keys<const float>(p.k, d),
                         task.first_key);
  LoadTile<Tiles::kHeld>(memory.Held(1), task.Keys<const float>(p.v, d),
                         task.first_key);
  LoadVisit<Tiles>(params.d_o, d, task, visit, memory.Visiting(1));
  for (; task.IsVisit(visit); visit = task.After(visit)) {
    VisitQueries<Tiles, kAddsDq>(params, statistics, task, visit, dkv);
  }
  StoreRows(task.Keys<float>(params.dk, d), key, p.scale, dkv[0]);
  StoreRows(task.Keys<float>(params.dv, d), key, 1, dkv[1]);
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_KEY_KERNEL_CUH_
