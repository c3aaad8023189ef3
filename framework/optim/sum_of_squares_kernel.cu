#include "framework/cuda/kernel.cuh"
#include "framework/optim/sum_of_squares_kernel.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// partial[b] = the sum over block b's share. Each element of a pack has its own
// accumulator: independent, shorter chains of additions with less rounding.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumOfSquaresShares(const T* __restrict__ values, int64_t count,
                       float* __restrict__ partial) {
  constexpr int N = kPack<T>;
  const int64_t num_packs = count / N;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float lanes[N] = {};
#pragma unroll 4
  for (int64_t i = first; i < num_packs; i += stride) {
    float x[N];
    device::Load(values + i * N, x);
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k] += x[k] * x[k];
  }
  const int64_t tail = num_packs * N + first;
  if (tail < count) {
    const float x = device::ToFloat(values[tail]);
    lanes[0] += x * x;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) sum += lanes[k];
  __shared__ float scratch[device::kWarp];
  sum = device::BlockSum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    SumOfSquaresTotal(const float* __restrict__ partial,
                      float* __restrict__ sum) {
  double x = 0;
  for (int i = threadIdx.x; i < kSumOfSquaresBlocks; i += kThreads) {
    x += partial[i];
  }
  __shared__ double scratch[device::kWarp];
  x = device::BlockSum(x, scratch);
  if (threadIdx.x == 0) *sum = static_cast<float>(x);
}

}  // namespace

cudaError_t LaunchSumOfSquares(const void* values, FloatType type,
                               int64_t count, float* partial, float* sum,
                               cudaStream_t stream) {
  const cudaError_t error = WithType(type, [&]<typename T>(T) {
    SumOfSquaresShares<<<kSumOfSquaresBlocks, kThreads, 0, stream>>>(
        static_cast<const T*>(values), count, partial);
    return cudaGetLastError();
  });
  if (error != cudaSuccess) return error;
  SumOfSquaresTotal<<<1, kThreads, 0, stream>>>(partial, sum);
  return cudaGetLastError();
}

}  // namespace tessera
