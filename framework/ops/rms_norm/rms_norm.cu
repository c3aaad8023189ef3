#include <type_traits>

#include "framework/cuda/kernel.cuh"
#include "framework/ops/rms_norm/rms_norm_launch.h"
#include "framework/ops/rms_norm/row_part.cuh"

namespace tessera {
namespace {

static_assert(kMaxRmsNormWidth == kMaxRowWidth);

using device::RowPart;

// Row `row` of a tensor of T, or null.
template <typename T>
__device__ __forceinline__ const T* RowAt(const void* rows, int64_t row,
                                          int64_t width) {
  return rows == nullptr ? nullptr : static_cast<const T*>(rows) + row * width;
}

// One block per row.
template <typename X, typename Y, int N, int kPacks, bool kAdds>
__global__ void __launch_bounds__(device::kMaxThreads)
    RmsNormForward(const RmsNormParams p) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  __shared__ float scratch[device::kWarp];
  const int64_t row = blockIdx.x, width = p.width;
  RowPart<X, N, kPacks> x;
  RowPart<Y, N, kPacks> delta;
  x.Read(RowAt<X>(p.x, row, width), width);
  if constexpr (kAdds) delta.Read(RowAt<Y>(p.delta, row, width), width);
  float v[kPacks][N];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= width) break;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      v[i][j] = x.At(i, j);
      if constexpr (kAdds)
        v[i][j] = device::Rounded<X>(v[i][j] + delta.At(i, j));
      squares += v[i][j] * v[i][j];
    }
    if constexpr (kAdds) {
      device::Store(static_cast<X*>(p.sum) + row * width + c, v[i]);
    }
  }
  const float scale =
      rsqrtf(device::BlockSum(squares, scratch) / width + p.eps);
  if (threadIdx.x == 0) p.r[row] = scale;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= width) break;
    float g[N];
    device::Load(p.gain + c, g);
#pragma unroll
    for (int j = 0; j < N; ++j) v[i][j] = v[i][j] * scale * g[j];
    device::Store(static_cast<Y*>(p.y) + row * width + c, v[i]);
  }
}

// What backward reads of one row.
template <typename X, typename Y, int N, int kPacks, bool kAdds>
struct BackwardRow {
  RowPart<X, N, kPacks> x;
  RowPart<Y, N, kPacks> dy;
  RowPart<X, N, kAdds ? kPacks : 1> d_sum;
  float r;

  __device__ __forceinline__ void Read(const RmsNormParams& p, int64_t row) {
    if (row >= p.rows) return;
    r = p.r[row];
    x.Read(RowAt<X>(p.x, row, p.width), p.width);
    dy.Read(RowAt<Y>(p.dy, row, p.width), p.width);
    if constexpr (kAdds) d_sum.Read(RowAt<X>(p.d_sum, row, p.width), p.width);
  }
};

// Writes this block's part of the gain's gradient, if it is wanted.
template <int N, int kPacks>
__device__ __forceinline__ void StoreGainGradient(
    const RmsNormParams& p, const float (&dgain)[kPacks][N]) {
  if (p.partial_dgain == nullptr) return;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int c = (threadIdx.x + i * blockDim.x) * N;
    if (c >= p.width) break;
    device::Store(p.partial_dgain + blockIdx.x * p.width + c, dgain[i]);
  }
}

// A block processes rows g, g + gridDim.x, ..., and loads one while it computes
// the one before. A thread has the same columns in every row, so it alone sums
// their part of the gain's gradient, dy * x_hat.
template <typename X, typename Y, int N, int kPacks, bool kAdds>
__global__ void __launch_bounds__(device::kMaxThreads)
    RmsNormBackward(const RmsNormParams p) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  __shared__ float scratch[device::kWarp];
  const int64_t width = p.width;
  float dgain[kPacks][N] = {};
  BackwardRow<X, Y, N, kPacks, kAdds> now, next;
  now.Read(p, blockIdx.x);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    next.Read(p, row + gridDim.x);
    const float projection =
        device::AddGainGradient(now.dy, now.x, now.r, p.gain, width, dgain);
    const float mean = device::BlockSum(projection, scratch) / width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c >= width) break;
      float g[N], v[N];
      device::Load(p.gain + c, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        v[j] = now.r * (now.dy.At(i, j) * g[j] - now.x.At(i, j) * now.r * mean);
        if constexpr (kAdds) {
          // Rounded before it is added, as a tensor of its own would be.
          if (p.d_sum != nullptr) {
            v[j] = __fadd_rn(now.d_sum.At(i, j), device::Rounded<X>(v[j]));
          }
          v[j] = device::Rounded<X>(v[j]);
        }
      }
      if constexpr (kAdds) {
        device::Store(static_cast<Y*>(p.d_delta) + row * width + c, v);
      }
      device::Store(static_cast<X*>(p.dx) + row * width + c, v);
    }
    now = next;
  }
  StoreGainGradient(p, dgain);
}

constexpr int kRowGroups = 32;

// A block sums 32 columns: kRowGroups warps each sum a part of the rows, then
// the first warp adds the parts.
template <typename T>
__global__ void RmsNormGainGradient(const ColumnSumsParams p) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  __shared__ float shares[kRowGroups][device::kWarp];
  const int lane = threadIdx.x % device::kWarp;
  const int group = threadIdx.x / device::kWarp;
  const int64_t column = int64_t{blockIdx.x} * device::kWarp + lane;
  float sum = 0;
  if (column < p.width) {
    for (int row = group; row < p.rows; row += kRowGroups) {
      sum += p.partial[row * p.width + column];
    }
  }
  shares[group][lane] = sum;
  __syncthreads();
  if (group != 0 || column >= p.width) return;
  for (int other = 1; other < kRowGroups; ++other) sum += shares[other][lane];
  T* out = static_cast<T*>(p.sums) + column;
  if (p.accumulate) sum += device::ToFloat(*out);
  *out = device::FromFloat<T>(sum);
}

template <typename X, typename Y>
inline constexpr bool kCanAdd = sizeof(X) > sizeof(Y);

// Elements per access: 16 bytes of the wider type.
template <typename X, typename Y>
inline constexpr int kRowPack = std::min(kPack<X>, kPack<Y>);

template <typename X, typename Y>
bool CanPack(const RmsNormParams& p) {
  return p.width % kRowPack<X, Y> == 0 && IsAligned(p.x) && IsAligned(p.y) &&
         IsAligned(p.dx) && IsAligned(p.dy) && IsAligned(p.gain) &&
         IsAligned(p.partial_dgain) && IsAligned(p.delta) && IsAligned(p.sum) &&
         IsAligned(p.d_sum) && IsAligned(p.d_delta);
}

// Calls fn with values of the types of x and y.
template <typename Fn>
cudaError_t WithTypes(const RmsNormParams& p, const Fn& fn) {
  return WithType(p.x_type, [&]<typename X>(X x) {
    if (p.x_type == p.y_type) return fn(x, x);
    if constexpr (std::is_same_v<X, float>) {
      return WithType(p.y_type, [&](auto y) { return fn(x, y); });
    }
    return cudaErrorInvalidValue;
  });
}

template <int N, int kPacks>
int ThreadsFor(const RmsNormParams& p) {
  return Threads((p.width / N + kPacks - 1) / kPacks);
}

template <typename X, typename Y, int N>
cudaError_t LaunchForward(const RmsNormParams& p, cudaStream_t stream) {
  return WithPacks<N>(p.width, [&]<int kPacks>(
                                   std::integral_constant<int, kPacks>) {
    auto kernel = RmsNormForward<X, Y, N, kPacks, false>;
    if constexpr (kCanAdd<X, Y>) {
      if (p.delta != nullptr) kernel = RmsNormForward<X, Y, N, kPacks, true>;
    }
    return LaunchEarly(kernel, p.rows, ThreadsFor<N, kPacks>(p), 0, stream, p);
  });
}

template <typename X, typename Y, int N>
cudaError_t LaunchBackward(const RmsNormParams& p, cudaStream_t stream) {
  return WithPacks<N>(
      p.width, [&]<int kPacks>(std::integral_constant<int, kPacks>) {
        auto kernel = RmsNormBackward<X, Y, N, kPacks, false>;
        if constexpr (kCanAdd<X, Y>) {
          if (p.d_delta != nullptr)
            kernel = RmsNormBackward<X, Y, N, kPacks, true>;
        }
        return LaunchEarly(kernel, p.row_groups, ThreadsFor<N, kPacks>(p), 0,
                           stream, p);
      });
}

// Whether this file has kernels for p: additions are of a narrower branch.
bool HasKernel(const RmsNormParams& p) {
  const bool adds = p.delta != nullptr || p.d_delta != nullptr;
  return p.width <= kMaxRmsNormWidth &&
         (!adds ||
          (p.x_type == FloatType::kFloat && p.y_type != FloatType::kFloat));
}

}  // namespace

cudaError_t LaunchRmsNormForward(const RmsNormParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (!HasKernel(p)) return cudaErrorInvalidValue;
  return WithTypes(p, [&]<typename X, typename Y>(X, Y) {
    return CanPack<X, Y>(p) ? LaunchForward<X, Y, kRowPack<X, Y>>(p, stream)
                            : LaunchForward<X, Y, 1>(p, stream);
  });
}

cudaError_t LaunchRmsNormBackward(const RmsNormParams& p, cudaStream_t stream) {
  if (p.row_groups == 0) return cudaSuccess;
  if (!HasKernel(p)) return cudaErrorInvalidValue;
  return WithTypes(p, [&]<typename X, typename Y>(X, Y) {
    return CanPack<X, Y>(p) ? LaunchBackward<X, Y, kRowPack<X, Y>>(p, stream)
                            : LaunchBackward<X, Y, 1>(p, stream);
  });
}

cudaError_t LaunchColumnSums(const ColumnSumsParams& p, cudaStream_t stream) {
  const int64_t blocks = (p.width + device::kWarp - 1) / device::kWarp;
  return WithType(p.type, [&]<typename T>(T) {
    return LaunchEarly(RmsNormGainGradient<T>, blocks,
                       kRowGroups * device::kWarp, 0, stream, p);
  });
}

}  // namespace tessera
