#include "framework/cuda/kernel.cuh"
#include "framework/optim/sum_of_squares_kernel.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kTotalThreads = 1024;

// Each element of a pack has its own accumulator: independent, shorter chains
// of additions with less rounding.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumOfSquaresSegments(const T* __restrict__ values,
                         const SquaresSegment* __restrict__ segments,
                         float* __restrict__ sums) {
  constexpr int N = kPack<T>;
  const SquaresSegment segment = segments[blockIdx.x];
  const T* const x = values + segment.begin;
  const int count = static_cast<int>(segment.count);
  const int packs = count / N;
  float lanes[N] = {};
#pragma unroll 4
  for (int i = threadIdx.x; i < packs; i += kThreads) {
    float pack[N];
    device::Load(x + i * N, pack);
#pragma unroll
    for (int k = 0; k < N; ++k) lanes[k] += pack[k] * pack[k];
  }
  if (const int tail = packs * N + threadIdx.x; tail < count) {
    const float last = device::ToFloat(x[tail]);
    lanes[0] += last * last;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) sum += lanes[k];
  __shared__ float scratch[device::kWarp];
  sum = device::BlockSum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kTotalThreads)
    SumOfSquaresTotal(const float* __restrict__ sums, int count,
                      float* __restrict__ total) {
  double x = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kTotalThreads) x += sums[i];
  __shared__ double scratch[device::kWarp];
  x = device::BlockSum(x, scratch);
  if (threadIdx.x == 0) *total = static_cast<float>(x);
}

}  // namespace

cudaError_t LaunchSumSegments(const void* values, FloatType type,
                              const SquaresSegment* segments, int count,
                              float* sums, cudaStream_t stream) {
  return WithType(type, [&]<typename T>(T) {
    SumOfSquaresSegments<<<count, kThreads, 0, stream>>>(
        static_cast<const T*>(values), segments, sums);
    return cudaGetLastError();
  });
}

cudaError_t LaunchSumOfSegments(const float* sums, int count, float* total,
                                cudaStream_t stream) {
  SumOfSquaresTotal<<<1, kTotalThreads, 0, stream>>>(sums, count, total);
  return cudaGetLastError();
}

}  // namespace tessera
