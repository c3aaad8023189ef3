#include "framework/cuda/kernel.cuh"
#include "framework/ops/embedding/embedding_launch.h"

namespace tessera {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * device::kWarp;
// Columns that one lane sums; a block sums kTile.
constexpr int kColumns = 16, kTile = kColumns * device::kWarp;
// A warp sums a row of the table with at most kFew tokens; a block shares a row
// with more.
constexpr int kFew = 8;
// Ids that a lane has in flight while it looks for tokens.
constexpr int kAhead = 8;

__global__ void CountTokens(const EmbeddingBackwardParams p) {
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= p.tokens) return;
  const int64_t id = p.ids[token];
  // The results do not depend on the order of these.
  atomicAdd(&p.counts[id], 1);
  atomicMax(&p.counts[p.vocab + id], static_cast<int>(p.tokens - token));
}

// Sums in FP32 of kColumns columns of a tile. Lane l has those of packs l, l +
// 32, ... of N columns.
template <typename Dx, typename Grad, int N>
struct ColumnSums {
  static constexpr int kPacks = kColumns / N;
  float v[kPacks][N] = {};

  // The column of pack i.
  static __device__ __forceinline__ int64_t Column(int i) {
    return int64_t{blockIdx.y} * kTile +
           (i * device::kWarp + threadIdx.x % device::kWarp) * N;
  }

  __device__ __forceinline__ void AddToken(const EmbeddingBackwardParams& p,
                                           int64_t token) {
    const Dx* row = static_cast<const Dx*>(p.dx) + token * p.width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (Column(i) >= p.width) break;
      float x[N];
      device::Load(row + Column(i), x);
#pragma unroll
      for (int j = 0; j < N; ++j) v[i][j] += x[j];
    }
  }

  // Adds, in order, the tokens of `id` in [begin, tokens) whose chunk of kWarp
  // places is `chunk` of `chunks`, until `left` were found.
  __device__ __forceinline__ void AddTokens(const EmbeddingBackwardParams& p,
                                            int64_t id, int64_t begin,
                                            int chunk, int chunks, int left) {
    const int lane = threadIdx.x % device::kWarp;
    const int64_t stride = int64_t{chunks} * device::kWarp;
    for (int64_t at = begin + chunk * device::kWarp; at < p.tokens && left > 0;
         at += kAhead * stride) {
      int64_t ids[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t token = at + k * stride + lane;
        ids[k] = token < p.tokens ? p.ids[token] : -1;
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        unsigned found = __ballot_sync(0xffffffff, ids[k] == id);
        left -= __popc(found);
        for (; found != 0; found &= found - 1) {
          AddToken(p, at + k * stride + __ffs(found) - 1);
        }
      }
    }
  }

  __device__ __forceinline__ void Write(const EmbeddingBackwardParams& p,
                                        int64_t id) {
    Grad* row = static_cast<Grad*>(p.grad) + id * p.width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (Column(i) >= p.width) break;
      if (p.accumulate) {
        float old[N];
        device::Load(row + Column(i), old);
#pragma unroll
        for (int j = 0; j < N; ++j) v[i][j] += old[j];
      }
      device::Store(row + Column(i), v[i]);
    }
  }
};

// A block writes kTile columns of kWarps rows of the table: first each warp one
// row, if it has few tokens, then all warps together those with many.
template <typename Dx, typename Grad, int N>
__global__ void __launch_bounds__(kThreads)
    Backward(const EmbeddingBackwardParams p) {
  using Sums = ColumnSums<Dx, Grad, N>;
  __shared__ float parts[kWarps][kTile];
  const int warp = threadIdx.x / device::kWarp;
  const int lane = threadIdx.x % device::kWarp;
  const int64_t first_id = int64_t{blockIdx.x} * kWarps;

  if (const int64_t id = first_id + warp; id < p.vocab) {
    const int count = p.counts[id];
    if (count <= kFew && (count > 0 || !p.accumulate)) {
      Sums sums;
      if (count > 0) {
        const int64_t first = p.tokens - p.counts[p.vocab + id];
        sums.AddToken(p, first);
        sums.AddTokens(p, id, first + 1, 0, 1, count - 1);
      }
      sums.Write(p, id);
    }
  }

  for (int row = 0; row < kWarps; ++row) {
    const int64_t id = first_id + row;
    if (id >= p.vocab) return;
    const int count = p.counts[id];
    if (count <= kFew) continue;
    Sums sums;
    sums.AddTokens(p, id, p.tokens - p.counts[p.vocab + id], warp, kWarps,
                   count);
#pragma unroll
    for (int i = 0; i < Sums::kPacks; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        parts[warp][(i * N + j) * device::kWarp + lane] = sums.v[i][j];
      }
    }
    __syncthreads();
    if (warp == 0) {
      for (int other = 1; other < kWarps; ++other) {
#pragma unroll
        for (int i = 0; i < Sums::kPacks; ++i) {
#pragma unroll
          for (int j = 0; j < N; ++j) {
            sums.v[i][j] += parts[other][(i * N + j) * device::kWarp + lane];
          }
        }
      }
      sums.Write(p, id);
    }
    __syncthreads();
  }
}

template <typename Dx, typename Grad, int N>
cudaError_t LaunchRows(const EmbeddingBackwardParams& p, cudaStream_t stream) {
  const dim3 grid((p.vocab + kWarps - 1) / kWarps,
                  (p.width + kTile - 1) / kTile);
  Backward<Dx, Grad, N><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardParams& p,
                                    cudaStream_t stream) {
  const cudaError_t cleared =
      cudaMemsetAsync(p.counts, 0, 2 * p.vocab * sizeof(int), stream);
  if (cleared != cudaSuccess) return cleared;
  if (p.tokens > 0) {
    const int64_t blocks = (p.tokens + kThreads - 1) / kThreads;
    CountTokens<<<blocks, kThreads, 0, stream>>>(p);
  }
  return WithType(p.dx_type, [&]<typename Dx>(Dx) {
    return WithType(p.grad_type, [&]<typename Grad>(Grad) {
      constexpr int kWide = std::min(kPack<Dx>, kPack<Grad>);
      const bool packs =
          p.width % kWide == 0 && IsAligned(p.dx) && IsAligned(p.grad);
      return packs ? LaunchRows<Dx, Grad, kWide>(p, stream)
                   : LaunchRows<Dx, Grad, 1>(p, stream);
    });
  });
}

}  // namespace tessera
