#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_COMMON_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_COMMON_CUH_

#include "attention_backends/flash_cuda/fp32/scores.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"
#include "attention_backends/flash_cuda/soft_cap.cuh"

// Shared by the kernels of the backward pass. With S = scale Q K^T + M, L =
// logsumexp(S) and D = rowsum(dO o O):
//   P = exp(S - L)   dP = dO V^T      dS = P o (dP - D)
//   dV = P^T dO      dK = scale dS^T Q      dQ = scale dS K
// With a soft cap (soft_cap.cuh), P and L are those of the capped scores S' and
// dS = P o (dP - D) o dS'/dS.

namespace tessera {
namespace flash {
namespace fp32 {

// -L and D of one query: P = exp(scale q k - L). -L is -infinity for queries
// without a key, so that P = 0.
struct RowStatistics {
  float minus_lse, delta;
};

// A CUDA block's shared memory. `scores` has a row for each held row; a warp
// uses only its own rows.
template <typename Tiles>
struct BackwardMemory {
  using Scores = Tile<Tiles::kStreamed>;
  float* base = SharedFloats();

  // Held: K and V, or Q and dO.
  __device__ __forceinline__ Tile<Tiles::kHeadDim> Held(int which) const {
    return Tile<Tiles::kHeadDim>(base + which * Tiles::kHeldSize);
  }
  // Streamed: Q and dO, or K and V.
  __device__ __forceinline__ Tile<Tiles::kHeadDim> Streamed(int which) const {
    return Tile<Tiles::kHeadDim>(base + 2 * Tiles::kHeldSize +
                                 which * Tiles::kStreamedSize);
  }
  __device__ __forceinline__ Scores Gradients() const {
    return Scores(base + 2 * Tiles::kHeldSize + 2 * Tiles::kStreamedSize);
  }
  __device__ __forceinline__ RowStatistics* Statistics() const {
    return reinterpret_cast<RowStatistics*>(base + 2 * Tiles::kHeldSize +
                                            2 * Tiles::kStreamedSize +
                                            Tiles::kScoresSize);
  }
};

// Turns a score into P, and dP into dS / scale.
template <bool kSoftCap>
__device__ __forceinline__ void ToGradients(float scale,
                                            const RowStatistics& row, float* p,
                                            float* ds) {
  const float slope = SoftCapSlope<kSoftCap>(*p);
  *p = Exp(fmaf(*p, scale, row.minus_lse));
  *ds = *p * (*ds - row.delta) * slope;
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_COMMON_CUH_
