#include "framework/cuda/kernel.cuh"
#include "framework/ops/embedding/embedding_launch.h"

namespace tessera {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * device::kWarp;
// A warp sums a row of the table with at most kFew tokens, kOwnColumns at a
// time; a block shares a row with more, of which it sums kSharedColumns.
constexpr int kFew = 8;
constexpr int kOwnColumns = 256, kSharedColumns = 768;
// Blocks for shared rows: two for each SM of a large GPU.
constexpr int kSharedBlocks = 264;
// Tokens whose rows a lane reads at once.
constexpr int kTogether = 2;
// Ids that a lane has in flight while it looks for tokens.
constexpr int kAhead = 8;

// Where p.workspace, of EmbeddingBackwardWorkspace() numbers, holds what. The
// order of the lists varies from run to run; nothing depends on it.
struct Lists {
  explicit Lists(const EmbeddingBackwardParams& p)
      : counts(p.workspace),
        heads(counts + p.vocab),
        num_shared(heads + p.vocab),
        next(num_shared + 1),
        shared_ids(next + p.tokens) {}

  int* const counts;      // [V], how often each id occurs
  int* const heads;       // [V], a token of each id that occurs
  int* const num_shared;  // all up to here begin as zeros
  int* const next;        // [N], another token of each token's id
  int* const shared_ids;  // the ids of shared rows
};

// Counts the tokens of each id and links them; lists the ids with more than
// kFew.
__global__ void EmbeddingLinkTokens(const EmbeddingBackwardParams p,
                                    const Lists lists) {
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= p.tokens) return;
  const int64_t id = p.ids[token];
  if (atomicAdd(&lists.counts[id], 1) == kFew) {
    lists.shared_ids[atomicAdd(lists.num_shared, 1)] = static_cast<int>(id);
  }
  lists.next[token] = atomicExch(&lists.heads[id], static_cast<int>(token));
}

// Lane i gets the i-th of the `count` tokens of `id`, at most kFew, in
// ascending order; the other lanes get -1.
__device__ __forceinline__ int OrderedTokens(const Lists& lists, int64_t id,
                                             int count) {
  const int lane = threadIdx.x % device::kWarp;
  int linked = -1;
  for (int i = 0, token = count > 0 ? lists.heads[id] : -1; i < count; ++i) {
    if (lane == i) linked = token;
    if (i + 1 < count) token = lists.next[token];
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

// Sums in FP32 of kColumns columns of one row. Lane l of a warp has those of
// packs l, l + 32, ... of N columns.
template <typename Dx, typename Grad, int N, int kColumns>
struct ColumnSums {
  static constexpr int kPacks = kColumns / (N * device::kWarp);
  static_assert(kPacks * N * device::kWarp == kColumns);
  float v[kPacks][N] = {};
  const int64_t first;  // of the columns

  __device__ __forceinline__ int64_t Column(int pack) const {
    return first + (pack * device::kWarp + threadIdx.x % device::kWarp) * N;
  }

  // Adds tokens in this order; none for one below 0.
  template <int n>
  __device__ __forceinline__ void Add(const EmbeddingBackwardParams& p,
                                      const int64_t (&tokens)[n]) {
    float x[n][kPacks][N] = {};
#pragma unroll
    for (int t = 0; t < n; ++t) {
      if (tokens[t] < 0) continue;
      const Dx* row = static_cast<const Dx*>(p.dx) + tokens[t] * p.width;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        if (Column(i) < p.width) device::Load(row + Column(i), x[t][i]);
      }
    }
#pragma unroll
    for (int t = 0; t < n; ++t) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < N; ++j) v[i][j] += x[t][i][j];
      }
    }
  }

  __device__ __forceinline__ void Write(const EmbeddingBackwardParams& p,
                                        int64_t id, int pack) {
    if (Column(pack) >= p.width) return;
    Grad* const to = static_cast<Grad*>(p.grad) + id * p.width + Column(pack);
    if (p.accumulate) {
      float old[N];
      device::Load(to, old);
#pragma unroll
      for (int j = 0; j < N; ++j) v[pack][j] += old[j];
    }
    device::Store(to, v[pack]);
  }
};

// A warp writes the row of `id`, which has `count` tokens, at most kFew.
template <typename Dx, typename Grad, int N>
__device__ __forceinline__ void OwnRow(const EmbeddingBackwardParams& p,
                                       const Lists& lists, int64_t id,
                                       int count) {
  using Sums = ColumnSums<Dx, Grad, N, kOwnColumns>;
  const int ordered = OrderedTokens(lists, id, count);
  for (int64_t first = 0; first < p.width; first += kOwnColumns) {
    Sums sums{.first = first};
    for (int begin = 0; begin < count; begin += kTogether) {
      int64_t tokens[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        tokens[t] = __shfl_sync(0xffffffff, ordered, begin + t);
      }
      sums.Add(p, tokens);
    }
#pragma unroll
    for (int i = 0; i < Sums::kPacks; ++i) sums.Write(p, id, i);
  }
}

// A block writes kSharedColumns columns of the row of `id` from `first` on.
// Each warp adds the tokens in its places of 32.
template <typename Dx, typename Grad, int N>
__device__ __forceinline__ void SharedRow(const EmbeddingBackwardParams& p,
                                          int64_t id, int64_t first) {
  using Sums = ColumnSums<Dx, Grad, N, kSharedColumns>;
  __shared__ float parts[kWarps][kSharedColumns];
  const int warp = threadIdx.x / device::kWarp;
  const int lane = threadIdx.x % device::kWarp;
  Sums sums{.first = first};
  for (int64_t begin = warp * device::kWarp; begin < p.tokens;
       begin += kAhead * kThreads) {
    int64_t ids[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t token = begin + k * kThreads + lane;
      ids[k] = token < p.tokens ? p.ids[token] : -1;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      unsigned found = __ballot_sync(0xffffffff, ids[k] == id);
      for (; found != 0; found &= found - 1) {
        sums.Add(p, {begin + k * kThreads + __ffs(found) - 1});
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Sums::kPacks; ++i) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      parts[warp][(i * N + j) * device::kWarp + lane] = sums.v[i][j];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Sums::kPacks; ++i) {
    if (i % kWarps != warp) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sums.v[i][j] = 0;
      for (int other = 0; other < kWarps; ++other) {
        sums.v[i][j] += parts[other][(i * N + j) * device::kWarp + lane];
      }
    }
    sums.Write(p, id, i);
  }
  __syncthreads();
}

// The first kSharedBlocks blocks write the rows with many tokens, in each of
// the others every warp one of the rest.
template <typename Dx, typename Grad, int N>
__global__ void __launch_bounds__(kThreads, /*blocks per SM=*/3)
    EmbeddingBackward(const EmbeddingBackwardParams p, const Lists lists) {
  if (blockIdx.x < kSharedBlocks) {
    const int64_t parts = (p.width + kSharedColumns - 1) / kSharedColumns;
    for (int64_t i = blockIdx.x; i < *lists.num_shared * parts;
         i += kSharedBlocks) {
      SharedRow<Dx, Grad, N>(p, lists.shared_ids[i / parts],
                             i % parts * kSharedColumns);
    }
    return;
  }
  const int64_t id = int64_t{blockIdx.x - kSharedBlocks} * kWarps +
                     threadIdx.x / device::kWarp;
  if (id >= p.vocab) return;
  const int count = lists.counts[id];
  if (count <= kFew && (count > 0 || !p.accumulate)) {
    OwnRow<Dx, Grad, N>(p, lists, id, count);
  }
}

template <typename Dx, typename Grad, int N>
cudaError_t LaunchRows(const EmbeddingBackwardParams& p, const Lists& lists,
                       cudaStream_t stream) {
  const int64_t blocks = kSharedBlocks + (p.vocab + kWarps - 1) / kWarps;
  EmbeddingBackward<Dx, Grad, N><<<blocks, kThreads, 0, stream>>>(p, lists);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardParams& p,
                                    cudaStream_t stream) {
  const Lists lists(p);
  const cudaError_t cleared = cudaMemsetAsync(
      p.workspace, 0, (lists.next - p.workspace) * sizeof(int), stream);
  if (cleared != cudaSuccess) return cleared;
  if (p.tokens > 0) {
    const int64_t blocks = (p.tokens + kThreads - 1) / kThreads;
    EmbeddingLinkTokens<<<blocks, kThreads, 0, stream>>>(p, lists);
  }
  return WithType(p.dx_type, [&]<typename Dx>(Dx) {
    return WithType(p.grad_type, [&]<typename Grad>(Grad) {
      constexpr int kWide = std::min(kPack<Dx>, kPack<Grad>);
      const bool packs =
          p.width % kWide == 0 && IsAligned(p.dx) && IsAligned(p.grad);
      return packs ? LaunchRows<Dx, Grad, kWide>(p, lists, stream)
                   : LaunchRows<Dx, Grad, 1>(p, lists, stream);
    });
  });
}

}  // namespace tessera
