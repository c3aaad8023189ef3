#ifndef FRAMEWORK_OPS_RMS_NORM_ROW_PART_CUH_
#define FRAMEWORK_OPS_RMS_NORM_ROW_PART_CUH_

#include <cstdint>
#include <type_traits>

#include "framework/cuda/kernel.cuh"

// Rows that stay in the registers of the threads that normalise them.

namespace tessera {
namespace device {

// The part of a row that one thread handles: kPacks packs of N elements, pack i
// at column (threadIdx.x + i * blockDim.x) * N, as they lie in memory. Nothing
// waits for a load before the first use of its values.
template <typename T, int N, int kPacks>
struct RowPart {
  Pack<T, N> packs[kPacks];

  // Reads the row that begins at `row`; null reads nothing.
  __device__ __forceinline__ void Read(const void* row, int64_t width) {
    if (row == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c < width) {
        packs[i] = *reinterpret_cast<const Pack<T, N>*>(
            static_cast<const T*>(row) + c);
      }
    }
  }
  __device__ __forceinline__ void Write(T* row, int64_t width) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c < width) *reinterpret_cast<Pack<T, N>*>(row + c) = packs[i];
    }
  }
  __device__ __forceinline__ float At(int i, int j) const {
    return ToFloat(packs[i].v[j]);
  }
};

// With x_hat = x r, adds this thread's columns of dy x_hat, the gain's
// gradient, to `dgain`, and returns their sum of dy gain x_hat.
template <typename X, typename Y, int N, int kPacks>
__device__ __forceinline__ float AddGainGradient(
    const RowPart<Y, N, kPacks>& dy, const RowPart<X, N, kPacks>& x, float r,
    const float* gain, int64_t width, float (&dgain)[kPacks][N]) {
  float projection = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= width) break;
    float g[N];
    Load(gain + c, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float product = dy.At(i, j) * (x.At(i, j) * r);
      dgain[i][j] += product;
      projection += product * g[j];
    }
  }
  return projection;
}

}  // namespace device

// Host side.

// The longest row that the registers of a block hold, 32 numbers a thread.
inline constexpr int64_t kMaxRowWidth = 16384;

// Calls fn with the number of packs of N that a thread of a block handles, as a
// constant.
template <int N, typename Fn>
cudaError_t WithPacks(int64_t width, const Fn& fn) {
  constexpr int kFew = 4, kMost = kMaxRowWidth / (N * device::kMaxThreads);
  const int64_t packs = (width + N - 1) / N;
  if (packs <= device::kMaxThreads) {
    return fn(std::integral_constant<int, 1>());
  }
  if (packs <= kFew * device::kMaxThreads) {
    return fn(std::integral_constant<int, kFew>());
  }
  return fn(std::integral_constant<int, kMost>());
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_ROW_PART_CUH_
