#ifndef ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRE_POST_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRE_POST_CUH_

#include <cmath>
#include <cstdint>

#include "attention_backends/flash_cuda/constants.h"
#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/instructions.cuh"

// The passes over rows of queries before and after the main backward kernel.
// Memory-bound: each element is read and written once.

namespace tessera {
namespace flash {
namespace hopper {

struct RowArgs {
  HeadView o, d_o, dq;
  const float* lse = nullptr;  // [B, H, S]
  int s = 0, h = 0, d = 0;
  float scale = 0;
  BackwardScratch scratch;
};

inline constexpr int kRowThreads = 256;
inline constexpr int kPieceElements = 8;  // of 16 bytes

// How a CUDA block of the pass before shares rows: a thread has one piece.
template <int kHeadDim>
struct RowShare {
  static constexpr int kPieces = kHeadDim <= 64 ? 8 : 16;
  static constexpr int kRows = kRowThreads / kPieces;
  static_assert(kHeadDim <= kPieces * kPieceElements);
};

// The tile of rows that this CUDA block takes.
struct RowTile {
  int tile, head, batch;

  __device__ __forceinline__ RowTile(int tiles_per_head, int heads)
      : tile(blockIdx.x % tiles_per_head),
        head(blockIdx.x / tiles_per_head % heads),
        batch(blockIdx.x / tiles_per_head / heads) {}
};

template <typename Element>
__device__ __forceinline__ const uint4* PieceOf(const HeadView& view,
                                                const RowTile& at, int row,
                                                int piece) {
  return reinterpret_cast<const uint4*>(
      static_cast<const Element*>(view.data) + at.batch * view.batch_stride +
      at.head * view.head_stride + row * view.row_stride +
      piece * kPieceElements);
}

template <typename Element>
__device__ __forceinline__ float Dot(const uint4& a, const uint4& b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = Unpack<Element>(x[i]), v = Unpack<Element>(y[i]);
    sum += u.x * v.x + u.y * v.y;
  }
  return sum;
}

// Clears this CUDA block's share of the sums, in proportion to its rows. If
// deterministic, clears the turns instead: the first block to have its turn at
// a tile writes the sums.
template <typename Dq, bool kDeterministic>
__device__ __forceinline__ void ClearSums(const BackwardScratch& scratch) {
  constexpr int kRows = RowShare<Dq::kHeadDim>::kRows;
  static_assert(Dq::kQueries % kRows == 0);
  constexpr int kBlocksPerTile = Dq::kQueries / kRows;
  if constexpr (kDeterministic) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x % kBlocksPerTile == 0) {
      scratch.turns[blockIdx.x / kBlocksPerTile] = 0;
    }
    if (blockIdx.x == 0) *scratch.taken = 0;
  } else {
    constexpr int kPieces = Dq::kElements / kBlocksPerTile / 4;  // of 16 bytes
    auto* const sums =
        reinterpret_cast<float4*>(scratch.dq) + int64_t{blockIdx.x} * kPieces;
    for (int i = threadIdx.x; i < kPieces; i += kRowThreads) {
      sums[i] = make_float4(0, 0, 0, 0);
    }
  }
}

// Computes delta = rowsum(dO o O) and lse2 = log2(e) L, padded so that rows
// that do not exist or see no key get the weight exp2(s - infinity) = 0. Clears
// what the main kernel adds to. CUDA blocks: B, H, padded S / RowShare::kRows.
template <typename Element, typename Dq, bool kDeterministic>
__global__ void __launch_bounds__(kRowThreads)
    BackwardPreprocessKernel(const __grid_constant__ RowArgs args) {
  ClearSums<Dq, kDeterministic>(args.scratch);
  using Share = RowShare<Dq::kHeadDim>;
  const int padded = PaddedRows(args.s, Dq::kQueries);
  const RowTile at(padded / Share::kRows, args.h);
  const int piece = threadIdx.x % Share::kPieces;
  const int row = at.tile * Share::kRows + threadIdx.x / Share::kPieces;
  float sum = 0;
  if (row < args.s && piece * kPieceElements < args.d) {
    sum = Dot<Element>(*PieceOf<Element>(args.o, at, row, piece),
                       *PieceOf<Element>(args.d_o, at, row, piece));
  }
#pragma unroll
  for (int step = Share::kPieces / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  if (piece != 0) return;
  const int64_t plane = int64_t{at.batch} * args.h + at.head;
  const int64_t to = plane * padded + row;
  const float lse = row < args.s ? args.lse[plane * args.s + row] : -INFINITY;
  args.scratch.lse2[to] = lse == -INFINITY ? INFINITY : lse * kLog2E;
  args.scratch.delta[to] = sum;
}

// How the pass after lays out a tile of dQ: rows in shared memory, padded to
// spread the banks.
template <typename Dq>
inline constexpr int kTileStride = Dq::kHeadDim + kPieceElements;

// Writes four neighbouring sums, the first of which is number `first`, to the
// tile.
template <typename Element, typename Dq>
__device__ __forceinline__ void StoreScaled(const float (&sums)[4], int first,
                                            float scale, Element* tile) {
  if constexpr (Dq::kTransposed) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto place = Dq::At(first + j);
      if (place.column >= Dq::kHeadDim) continue;
      tile[place.query * kTileStride<Dq> + place.column] =
          static_cast<Element>(sums[j] * scale);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {  // neighbours in a row
      const auto place = Dq::At(first + j);
      *reinterpret_cast<uint32_t*>(tile + place.query * kTileStride<Dq> +
                                   place.column) =
          Pack<Element>(sums[j] * scale, sums[j + 1] * scale);
    }
  }
}

// Computes dQ from its FP32 sums, times the scale. CUDA blocks: B, H, tiles of
// queries.
template <typename Element, typename Dq, bool kDeterministic>
__global__ void __launch_bounds__(kRowThreads)
    BackwardPostprocessKernel(const __grid_constant__ RowArgs args) {
  alignas(16) __shared__ Element tile[Dq::kQueries * kTileStride<Dq>];
  const RowTile at(PaddedRows(args.s, Dq::kQueries) / Dq::kQueries, args.h);
  const int first_row = at.tile * Dq::kQueries;
  const float* sums = args.scratch.dq + int64_t{blockIdx.x} * Dq::kElements;
  // Otherwise no query sees a key, and nobody has written the sums.
  const bool written = !kDeterministic || args.scratch.turns[blockIdx.x] > 0;
  constexpr int kLoads = Dq::kElements / (kRowThreads * 4);
  static_assert(Dq::kElements == kLoads * kRowThreads * 4);
  // A transposed place takes many registers to compute. With several loads in
  // flight, fewer CUDA blocks would fit on a multiprocessor.
  constexpr int kAtOnce = Dq::kTransposed ? 1 : kLoads;
  for (int load = 0; load < kLoads; load += kAtOnce) {
    float4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int from = (load + i) * kRowThreads + threadIdx.x;
      x[i] = written ? reinterpret_cast<const float4*>(sums)[from]
                     : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float values[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
      const int first = ((load + i) * kRowThreads + threadIdx.x) * 4;
      StoreScaled<Element, Dq>(values, first, args.scale, tile);
    }
  }
  __syncthreads();
  const int pieces = args.d / kPieceElements;
  for (int i = threadIdx.x; i < Dq::kQueries * pieces; i += kRowThreads) {
    const int row = i / pieces, piece = i % pieces;
    if (first_row + row >= args.s) break;
    *const_cast<uint4*>(PieceOf<Element>(args.dq, at, first_row + row, piece)) =
        *reinterpret_cast<const uint4*>(tile + row * kTileStride<Dq> +
                                        piece * kPieceElements);
  }
}

}  // namespace hopper
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_HOPPER_BACKWARD_PRE_POST_CUH_
