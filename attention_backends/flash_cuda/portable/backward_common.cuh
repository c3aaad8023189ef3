#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_COMMON_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_COMMON_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/scores.cuh"
#include "attention_backends/flash_cuda/portable/tile.cuh"
#include "attention_backends/flash_cuda/portable/tile_sizes.h"

// Shared by the kernels of the backward pass. With S = scale Q K^T + M, L =
// logsumexp(S) and D = rowsum(dO o O):
//   P = exp(S - L)   dP = dO V^T      dS = P o (dP - D)
//   dV = P^T dO      dK = scale dS^T Q      dQ = scale dS K
// With a soft cap (soft_cap.cuh), P and L are those of the capped scores S' and
// dS = P o (dP - D) o dS'/dS.

namespace tessera {
namespace flash {
namespace portable {

// -L log2(e) and D of one query: P = 2^(scale log2(e) q k - L log2(e)). -L is
// -infinity for queries without a key, so that P = 0.
struct RowStatistics {
  float minus_lse, delta;
};

// Scratch in global memory.
struct BackwardScratch {
  RowStatistics* statistics;  // [B, H, S]
  // [B, H, query tiles, BackwardTiles::kDqElements]: dQ / scale, each thread's
  // elements in its own order; empty if dQ has a separate kernel.
  float* dq_sums;
};

// A CUDA block's shared memory.
template <typename Tiles>
struct BackwardMemory {
  uint32_t base = SharedAddress(SharedMemory());

  // Held: K and V, or Q and dO.
  __device__ __forceinline__ uint32_t Held(int which) const {
    return base + which * Tiles::kHeldBytes;
  }
  // Streamed: Q and dO, or K and V.
  __device__ __forceinline__ uint32_t Streamed(int stage, int which) const {
    return base + 2 * Tiles::kHeldBytes +
           (2 * stage + which) * Tiles::kStreamedBytes;
  }
  __device__ __forceinline__ uint32_t Statistics(int stage) const {
    return base + 2 * Tiles::kHeldBytes + 4 * Tiles::kStreamedBytes +
           stage * Tiles::kStatisticsBytes;
  }
  // Tiles of kHeld x kStreamed; P only if warps share their scores.
  __device__ __forceinline__ uint32_t Ds() const { return Statistics(2); }
  __device__ __forceinline__ uint32_t P() const {
    return Ds() + Tiles::kDsBytes;
  }
};

// A warp's place among the held rows and the columns of the results, and of the
// scores if warps share them.
template <typename Tiles>
struct BackwardWarp {
  int row = Warp() / Tiles::kColumnWarps * 16 * Tiles::kRowBlocks;
  int column_warp = Warp() % Tiles::kColumnWarps;
};

// Rounds a CUDA block's result to T and writes it by way of `tile`, which no
// warp reads any more. Warps hold the rows of BackwardWarp.
template <int kHeadDim, typename T, int kM, int kN>
__device__ __forceinline__ void StoreHeldRows(const HeadRows<T>& to,
                                              int first_row, uint32_t tile,
                                              const float (&c)[kM][kN][4]) {
  using Tiles = BackwardTiles<kHeadDim, sizeof(T)>;
  const BackwardWarp<Tiles> warp;
  uint32_t staged[kM][8 * kN / kFragment<T>][4];
  PackFragments<T>(c, staged);
  StageFragments<T, kHeadDim, Tiles::kColumnWarps>(tile, warp.row,
                                                   warp.column_warp, staged);
  __syncthreads();
  StoreTile<Tiles::kHeld, kHeadDim, Tiles::kThreads>(to, first_row, tile,
                                                     threadIdx.x);
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_COMMON_CUH_
