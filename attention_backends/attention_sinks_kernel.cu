#include "attention_backends/attention_sinks_kernel.h"
#include "framework/cuda/kernel.cuh"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / device::kWarp;
constexpr int kElements = 4;  // that a lane moves at once

// A warp has a row, row (b, s, h) of [B, S, H].
struct Row {
  int64_t batch, position;
  int head;

  __device__ static Row At(const SinkParams& p, int64_t token, int head) {
    return {token / p.sequence, token % p.sequence, head};
  }
  __device__ float* Lse(const SinkParams& p) const {
    return p.lse + (batch * p.heads + head) * p.sequence + position;
  }
  template <typename T>
  __device__ T* O(const SinkParams& p) const {
    const int64_t token = batch * p.sequence + position;
    return static_cast<T*>(p.o) + (token * p.heads + head) * p.head_dim;
  }
  template <typename T>
  __device__ const T* DO(const SinkParams& p) const {
    return static_cast<const T*>(p.d_o) + batch * p.d_o_batch +
           head * p.d_o_head + position * p.d_o_row;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ApplySinksKernel(const SinkParams p) {
  const int64_t index =
      int64_t{blockIdx.x} * kWarps + threadIdx.x / device::kWarp;
  if (index >= p.batch * p.sequence * p.heads) return;
  const Row row = Row::At(p, index / p.heads, index % p.heads);
  const int lane = threadIdx.x % device::kWarp;
  const float lse = *row.Lse(p), sink = p.sinks[row.head];
  const float max = fmaxf(lse, sink);
  const float with_sink = max + logf(expf(lse - max) + expf(sink - max));
  const float factor = expf(lse - with_sink);  // 0 in a row without a key
  T* const o = row.O<T>(p);
  for (int i = lane * kElements; i < p.head_dim;
       i += device::kWarp * kElements) {
    float x[kElements];
    device::Load(o + i, x);
#pragma unroll
    for (float& element : x) element *= factor;
    device::Store(o + i, x);
  }
  // Every lane has read it.
  __syncwarp();
  if (lane == 0) *row.Lse(p) = with_sink;
}

// A block sums a chunk of a head's rows. Heads are in the grid's first
// dimension, because there may be more than 65,535.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SinkGradientsKernel(const SinkParams p) {
  __shared__ float scratch[device::kWarp];
  const int head = blockIdx.x, lane = threadIdx.x % device::kWarp;
  const float sink = p.sinks[head];
  float sum = 0;  // of this lane's columns
  for (int64_t token =
           int64_t{blockIdx.y} * kWarps + threadIdx.x / device::kWarp;
       token < p.batch * p.sequence; token += int64_t{p.chunks} * kWarps) {
    const Row row = Row::At(p, token, head);
    const float weight = expf(sink - *row.Lse(p));
    const T *const o = row.O<T>(p), *const d_o = row.DO<T>(p);
    for (int i = lane * kElements; i < p.head_dim;
         i += device::kWarp * kElements) {
      float x[kElements], y[kElements];
      device::Load(o + i, x);
      device::Load(d_o + i, y);
#pragma unroll
      for (int j = 0; j < kElements; ++j) sum -= weight * x[j] * y[j];
    }
  }
  sum = device::BlockSum(sum, scratch);
  if (threadIdx.x == 0) p.partial[head * p.chunks + blockIdx.y] = sum;
}

__global__ void __launch_bounds__(device::kWarp)
    SumSinkGradientsKernel(const SinkParams p) {
  float sum = 0;
  for (int i = threadIdx.x; i < p.chunks; i += device::kWarp) {
    sum += p.partial[blockIdx.x * p.chunks + i];
  }
  sum = device::WarpSum(sum);
  if (threadIdx.x == 0) p.d_sinks[blockIdx.x] = sum;
}

}  // namespace

cudaError_t LaunchApplySinks(const SinkParams& p, cudaStream_t stream) {
  const int64_t rows = p.batch * p.sequence * p.heads;
  return WithType(p.type, [&]<typename T>(T) {
    ApplySinksKernel<T><<<static_cast<int>((rows + kWarps - 1) / kWarps),
                          kThreads, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

cudaError_t LaunchSinkGradients(const SinkParams& p, cudaStream_t stream) {
  return WithType(p.type, [&]<typename T>(T) {
    SinkGradientsKernel<T><<<dim3(p.heads, p.chunks), kThreads, 0, stream>>>(p);
    SumSinkGradientsKernel<<<p.heads, device::kWarp, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace tessera
