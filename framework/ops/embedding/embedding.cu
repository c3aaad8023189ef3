#include "framework/cuda/kernel.cuh"
#include "framework/ops/embedding/embedding_launch.h"

namespace tessera {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * device::kWarp;
// Columns that one lane sums; a block sums kTile.
constexpr int kColumns = 8, kTile = kColumns * device::kWarp;
// A warp sums a row of the table with at most kFew tokens; a block shares a row
// with more.
constexpr int kFew = 8;
// Tokens whose rows a lane reads at once.
constexpr int kTogether = 2;
// Ids that a lane has in flight while it looks for tokens.
constexpr int kAhead = 8;

// Counts the tokens of each id and links them in a list, whose order varies
// from run to run; nothing that follows depends on it.
__global__ void EmbeddingLinkTokens(const EmbeddingBackwardParams p) {
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= p.tokens) return;
  const int64_t id = p.ids[token];
  atomicAdd(&p.counts[id], 1);
  p.next[token] = atomicExch(&p.counts[p.vocab + id], static_cast<int>(token));
}

// Lane i gets the i-th of the `count` tokens of `id`, at most kFew, in
// ascending order; the other lanes get -1.
__device__ __forceinline__ int OrderedTokens(const EmbeddingBackwardParams& p,
                                             int64_t id, int count) {
  const int lane = threadIdx.x % device::kWarp;
  int linked = -1;
  for (int i = 0, token = count > 0 ? p.counts[p.vocab + id] : -1; i < count;
       ++i) {
    if (lane == i) linked = token;
    if (i + 1 < count) token = p.next[token];
  }
  int ordered = -1;
  for (int i = 0; i < count; ++i) {
    const int token = __shfl_sync(0xffffffff, linked, i);
    const unsigned smaller =
        __ballot_sync(0xffffffff, lane < count && linked < token);
    if (lane == __popc(smaller)) ordered = token;
  }
  return ordered;
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

  // Adds tokens in this order; none for one below 0.
  __device__ __forceinline__ void AddTokens(
      const EmbeddingBackwardParams& p, const int64_t (&tokens)[kTogether]) {
    float x[kTogether][kPacks][N] = {};
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      if (tokens[t] < 0) continue;
      const Dx* row = static_cast<const Dx*>(p.dx) + tokens[t] * p.width;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (Column(i) < p.width) device::Load(row + Column(i), x[t][i]);
      }
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) v[i][j] += x[t][i][j];
      }
    }
  }

  // Adds, in order, all `count` tokens of `id`, at most kFew.
  __device__ __forceinline__ void AddFew(const EmbeddingBackwardParams& p,
                                         int64_t id, int count) {
    const int ordered = OrderedTokens(p, id, count);
    for (int begin = 0; begin < count; begin += kTogether) {
      int64_t tokens[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        tokens[t] = __shfl_sync(0xffffffff, ordered, begin + t);
      }
      AddTokens(p, tokens);
    }
  }

  // Adds, in order, those of the `count` tokens of `id` whose chunk of kWarp
  // places is `chunk` of `chunks`.
  __device__ __forceinline__ void AddChunks(const EmbeddingBackwardParams& p,
                                            int64_t id, int chunk, int chunks,
                                            int count) {
    const int lane = threadIdx.x % device::kWarp;
    const int64_t stride = int64_t{chunks} * device::kWarp;
    for (int64_t at = chunk * device::kWarp; at < p.tokens && count > 0;
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
        count -= __popc(found);
        while (found != 0) {
          int64_t tokens[kTogether];
#pragma unroll
          for (int t = 0; t < kTogether; ++t) {
            tokens[t] = found == 0 ? -1 : at + k * stride + __ffs(found) - 1;
            found &= found - 1;
          }
          AddTokens(p, tokens);
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
// row, if it has few tokens, then all warps together those with many. Its rows
// are far apart, because vocabularies have frequent words side by side.
template <typename Dx, typename Grad, int N>
__global__ void __launch_bounds__(kThreads, /*blocks per SM=*/2)
    EmbeddingBackward(const EmbeddingBackwardParams p) {
  using Sums = ColumnSums<Dx, Grad, N>;
  __shared__ float parts[kWarps][kTile];
  const int warp = threadIdx.x / device::kWarp;
  const int lane = threadIdx.x % device::kWarp;
  const auto id_of = [](int row) {
    return int64_t{row} * gridDim.x + blockIdx.x;
  };

  if (const int64_t id = id_of(warp); id < p.vocab) {
    const int count = p.counts[id];
    if (count <= kFew && (count > 0 || !p.accumulate)) {
      Sums sums;
      sums.AddFew(p, id, count);
      sums.Write(p, id);
    }
  }

  for (int row = 0; row < kWarps; ++row) {
    const int64_t id = id_of(row);
    if (id >= p.vocab) return;
    const int count = p.counts[id];
    if (count <= kFew) continue;
    Sums sums;
    sums.AddChunks(p, id, warp, kWarps, count);
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
  EmbeddingBackward<Dx, Grad, N><<<grid, kThreads, 0, stream>>>(p);
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
    EmbeddingLinkTokens<<<blocks, kThreads, 0, stream>>>(p);
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
