#include <algorithm>
#include <cmath>

#include "framework/cuda/kernel.cuh"
#include "framework/ops/cross_entropy/cross_entropy_launch.h"

namespace tessera {
namespace {

// sum_j exp(x_j) = sum * exp(max), accumulated in one pass over the row
// (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
struct ExpSum {
  float max, sum;
};

__device__ ExpSum Empty() { return {.max = -INFINITY, .sum = 0}; }

// NaN if a or b is. fmaxf() drops a NaN.
__device__ float Max(float a, float b) {
  float max;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(a), "f"(b));
  return max;
}

template <typename T>
__device__ ExpSum Add(const ExpSum& a, const ExpSum& b) {
  const float max = Max(a.max, b.max);
  // If both are empty, exp(-inf - -inf) would be NaN.
  if (max == -INFINITY) return Empty();
  return {.max = max,
          .sum = a.sum * device::Exp<T>(a.max - max) +
                 b.sum * device::Exp<T>(b.max - max)};
}

template <typename T>
__device__ ExpSum WarpAdd(ExpSum x) {
#pragma unroll
  for (int lane = device::kWarp / 2; lane > 0; lane /= 2) {
    const ExpSum other = {.max = __shfl_xor_sync(0xffffffff, x.max, lane),
                          .sum = __shfl_xor_sync(0xffffffff, x.sum, lane)};
    x = Add<T>(x, other);
  }
  return x;
}

// Reduces over the block. The threads of the first warp get the result.
template <typename T>
__device__ ExpSum BlockAdd(ExpSum x) {
  __shared__ ExpSum scratch[device::kWarp];
  const int warp = threadIdx.x / device::kWarp;
  const int lane = threadIdx.x % device::kWarp;
  x = WarpAdd<T>(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  if (warp != 0) return x;
  return WarpAdd<T>(lane < blockDim.x / device::kWarp ? scratch[lane]
                                                      : Empty());
}

struct DeviceTanh {
  __device__ Logit operator()(float x) const {
    const float t = tanhf(x);
    return {t, 1 - t * t};
  }
};

// Kernels are compiled twice, because options cost registers and time: kPlain
// is for rows without options.
template <bool kPlain>
__device__ Logit LogitOf(const CrossEntropyOptions& options, float x) {
  if (kPlain || options.soft_cap == 0) return UncappedLogit()(x);
  return CappedLogit<DeviceTanh>{options.soft_cap}(x);
}

// Writes forward's results for row `row`, whose logits are `x`. `total` is the
// sum of their exponentials, `sum` their sum.
template <typename T, bool kPlain>
__device__ __forceinline__ void StoreRow(const CrossEntropyParams& p,
                                         int64_t row, const T* x,
                                         const ExpSum& total, float sum) {
  const float log_sum = logf(total.sum);
  const float lse = total.max + log_sum;
  const int64_t target = p.targets[row];
  p.lse[row] = lse;
  // The rounding error of that sum (Knuth's two-sum). exp(x - lse) would
  // magnify it to several roundings of the probability.
  const float added = lse - total.max;
  p.lse[p.rows + row] = (total.max - (lse - added)) + (log_sum - added);
  if (target < 0) {
    p.losses[row] = 0;
    return;
  }
  const float x_target = device::ToFloat(x[target]);
  p.losses[row] = RowLoss(kPlain ? TrainingObjective() : p.options.objective,
                          {.lse = lse,
                           .target = LogitOf<kPlain>(p.options, x_target).value,
                           .mean = sum / static_cast<float>(p.vocab)});
}

// One block per row.
template <typename T, int N, bool kPlain>
__global__ void CrossEntropyForward(const CrossEntropyParams p) {
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits) + row * p.logits_stride;
  ExpSum total = Empty();
  float sum = 0;  // of the logits
  for (int64_t c = threadIdx.x * N; c < p.vocab; c += blockDim.x * N) {
    float v[N];
    device::Load(x + c, v);
    if constexpr (!kPlain) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        v[i] = LogitOf<kPlain>(p.options, v[i]).value;
        if (c + i < p.vocab) sum += v[i];
      }
    }
    // The last pack of a row may end between rows.
    if (c + N > p.vocab) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (c + i >= p.vocab) v[i] = -INFINITY;
      }
    }
    ExpSum pack = {.max = v[0], .sum = 0};
#pragma unroll
    for (int i = 1; i < N; ++i) pack.max = Max(pack.max, v[i]);
    if (pack.max == -INFINITY) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.sum += device::Exp<T>(v[i] - pack.max);
    total = Add<T>(total, pack);
  }
  total = BlockAdd<T>(total);
  if constexpr (!kPlain) {
    __shared__ float scratch[device::kWarp];
    sum = device::BlockSum(sum, scratch);
  }
  if (threadIdx.x == 0) StoreRow<T, kPlain>(p, row, x, total, sum);
}

// A block handles one row and as many packs of its columns as it has threads.
template <typename T, int N, bool kPlain>
__global__ void CrossEntropyBackward(const CrossEntropyParams p) {
  const int64_t block =
      int64_t{blockIdx.z} * gridDim.y + blockIdx.y;  // of a row
  const int64_t c = (block * blockDim.x + threadIdx.x) * N;
  if (c >= p.vocab) return;
  const int64_t row = blockIdx.x;
  const int64_t target = p.targets[row];
  const float scale = target < 0 ? 0 : *p.dloss;
  const float lse = p.lse[row];
  const float rest = p.lse[p.rows + row];
  const RowGradient g =
      kPlain ? RowGradient() : GradientOfRow(p.options.objective, lse, p.vocab);
  float v[N];
  device::Load(static_cast<const T*>(p.logits) + row * p.logits_stride + c, v);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Logit y = LogitOf<kPlain>(p.options, v[i]);
    const float softmax = device::Exp<T>((y.value - lse) - rest);
    v[i] = (LogitGradient(g, softmax) - (c + i == target ? g.target : 0)) *
           y.slope * scale;
  }
  device::Store(static_cast<T*>(p.dlogits) + row * p.dlogits_stride + c, v);
}

template <typename T>
bool CanPack(const CrossEntropyParams& p) {
  return p.logits_stride % kPack<T> == 0 && p.dlogits_stride % kPack<T> == 0 &&
         IsAligned(p.logits) && IsAligned(p.dlogits);
}

int64_t NumPacks(int64_t elements, int64_t pack) {
  return (elements + pack - 1) / pack;
}

bool IsPlain(const CrossEntropyParams& p) {
  return p.options == CrossEntropyOptions();
}

template <typename T, int N>
cudaError_t LaunchForward(const CrossEntropyParams& p, cudaStream_t stream) {
  const auto kernel = IsPlain(p) ? CrossEntropyForward<T, N, true>
                                 : CrossEntropyForward<T, N, false>;
  kernel<<<p.rows, Threads(NumPacks(p.vocab, N)), 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t LaunchBackward(const CrossEntropyParams& p, cudaStream_t stream) {
  const int64_t packs = NumPacks(p.vocab, N);
  const int threads = Threads(packs, 256);
  const int64_t blocks = (packs + threads - 1) / threads;
  // A grid's second dimension ends at 65,535.
  const int64_t y = std::min<int64_t>(blocks, 65535);
  const dim3 grid(p.rows, y, (blocks + y - 1) / y);
  const auto kernel = IsPlain(p) ? CrossEntropyBackward<T, N, true>
                                 : CrossEntropyBackward<T, N, false>;
  kernel<<<grid, threads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchCrossEntropyForward(const CrossEntropyParams& p,
                                      cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    return CanPack<T>(p) ? LaunchForward<T, kPack<T>>(p, stream)
                         : LaunchForward<T, 1>(p, stream);
  });
}

cudaError_t LaunchCrossEntropyBackward(const CrossEntropyParams& p,
                                       cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    return CanPack<T>(p) ? LaunchBackward<T, kPack<T>>(p, stream)
                         : LaunchBackward<T, 1>(p, stream);
  });
}

}  // namespace tessera
