#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "framework/optim/sum_of_squares_kernel.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// 16 bytes of a 2- or 4-byte dtype.
template <typename T>
struct alignas(16) Packet {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename Sum>
__device__ __forceinline__ Sum WarpSum(Sum x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

// The sum over the block, in thread 0.
template <typename Sum>
__device__ __forceinline__ Sum BlockSum(Sum x) {
  __shared__ Sum warp_sums[kWarps];
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return WarpSum(threadIdx.x < kWarps ? warp_sums[threadIdx.x] : Sum{0});
}

// partial[b] = the sum over block b's share. Each lane of a packet has its own
// accumulator: independent chains, and shorter ones, hence less rounding.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumShares(const T* __restrict__ values, int64_t count,
              float* __restrict__ partial) {
  constexpr int N = Packet<T>::kSize;
  const auto* packets = reinterpret_cast<const Packet<T>*>(values);
  const int64_t num_packets = count / N;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float lanes[N] = {};
#pragma unroll 4
  for (int64_t i = first; i < num_packets; i += stride) {
    const Packet<T> packet = packets[i];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x = static_cast<float>(packet.values[k]);
      lanes[k] += x * x;
    }
  }
  const int64_t tail = num_packets * N + first;
  if (tail < count) {
    const float x = static_cast<float>(values[tail]);
    lanes[0] += x * x;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) sum += lanes[k];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    SumPartials(const float* __restrict__ partial, float* __restrict__ sum) {
  double x = 0;
  for (int i = threadIdx.x; i < kSumOfSquaresBlocks; i += kThreads) {
    x += partial[i];
  }
  x = BlockSum(x);
  if (threadIdx.x == 0) *sum = static_cast<float>(x);
}

template <typename T>
void LaunchShares(const void* values, int64_t count, float* partial,
                  cudaStream_t stream) {
  SumShares<<<kSumOfSquaresBlocks, kThreads, 0, stream>>>(
      static_cast<const T*>(values), count, partial);
}

}  // namespace

cudaError_t LaunchSumOfSquares(const void* values, FlatDtype dtype,
                               int64_t count, float* partial, float* sum,
                               cudaStream_t stream) {
  switch (dtype) {
    case FlatDtype::kFloat:
      LaunchShares<float>(values, count, partial, stream);
      break;
    case FlatDtype::kBFloat16:
      LaunchShares<__nv_bfloat16>(values, count, partial, stream);
      break;
    case FlatDtype::kHalf:
      LaunchShares<__half>(values, count, partial, stream);
      break;
  }
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  SumPartials<<<1, kThreads, 0, stream>>>(partial, sum);
  return cudaGetLastError();
}

}  // namespace tessera
