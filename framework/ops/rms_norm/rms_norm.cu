#include <type_traits>

#include "framework/cuda/kernel.cuh"
#include "framework/ops/rms_norm/rms_norm_launch.h"

namespace tessera {
namespace {

template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return device::ToFloat(device::FromFloat<T>(x));
}

// One block per row. The second pass over x hits the L1 cache.
template <typename X, typename Y, int N, bool kAdds>
__global__ void Forward(const RmsNormParams p) {
  __shared__ float scratch[device::kWarp];
  const int64_t row = blockIdx.x, width = p.width;
  const X* x = static_cast<const X*>(p.x) + row * width;
  Y* y = static_cast<Y*>(p.y) + row * width;
  float squares = 0;
  for (int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
    float v[N];
    device::Load(x + c, v);
    if constexpr (kAdds) {
      float d[N];
      device::Load(static_cast<const Y*>(p.delta) + row * width + c, d);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = Rounded<X>(v[i] + d[i]);
      device::Store(static_cast<X*>(p.sum) + row * width + c, v);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v[i] * v[i];
  }
  const float scale =
      rsqrtf(device::BlockSum(squares, scratch) / width + p.eps);
  if (threadIdx.x == 0) p.r[row] = scale;
  // A thread reads back only what it wrote itself.
  if constexpr (kAdds) x = static_cast<const X*>(p.sum) + row * width;
  for (int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
    float v[N], g[N];
    device::Load(x + c, v);
    device::Load(p.gain + c, g);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * scale * g[i];
    device::Store(y + c, v);
  }
}

// This thread's part of sum_C(s x_hat) of one row. Adds dy * x_hat to `dgain`,
// where element i of pack k is at i * packs + k, so that neighbouring threads
// use neighbouring banks.
template <typename X, typename Y, int N>
__device__ __forceinline__ float Project(const RmsNormParams& p, int64_t row,
                                         float r, float* dgain) {
  const X* x = static_cast<const X*>(p.x) + row * p.width;
  const Y* dy = static_cast<const Y*>(p.dy) + row * p.width;
  const int packs = static_cast<int>(p.width / N);
  float projection = 0;
  for (int k = threadIdx.x; k < packs; k += blockDim.x) {
    float v[N], d[N], g[N];
    device::Load(x + k * N, v);
    device::Load(dy + k * N, d);
    device::Load(p.gain + k * N, g);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float product = d[i] * (v[i] * r);
      dgain[i * packs + k] += product;
      projection += product * g[i];
    }
  }
  return projection;
}

// dx of one row, given the mean of s x_hat.
template <typename X, typename Y, int N, bool kAdds>
__device__ __forceinline__ void WriteDx(const RmsNormParams& p, int64_t row,
                                        float r, float mean) {
  const X* x = static_cast<const X*>(p.x) + row * p.width;
  const Y* dy = static_cast<const Y*>(p.dy) + row * p.width;
  X* dx = static_cast<X*>(p.dx) + row * p.width;
  const int packs = static_cast<int>(p.width / N);
  for (int k = threadIdx.x; k < packs; k += blockDim.x) {
    float v[N], d[N], g[N];
    device::Load(x + k * N, v);
    device::Load(dy + k * N, d);
    device::Load(p.gain + k * N, g);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = r * (d[i] * g[i] - v[i] * r * mean);
    if constexpr (kAdds) {
      if (p.d_sum != nullptr) {
        float other[N];
        device::Load(static_cast<const X*>(p.d_sum) + row * p.width + k * N,
                     other);
        // Rounded before it is added, as a tensor of its own would be.
#pragma unroll
        for (int i = 0; i < N; ++i) {
          v[i] = __fadd_rn(other[i], Rounded<X>(v[i]));
        }
      }
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = Rounded<X>(v[i]);
      device::Store(static_cast<Y*>(p.d_delta) + row * p.width + k * N, v);
    }
    device::Store(dx + k * N, v);
  }
}

// A block processes rows g, g + gridDim.x, ... A thread has the same columns in
// every row, so no other thread adds to their sums.
template <typename X, typename Y, int N, bool kAdds>
__global__ void Backward(const RmsNormParams p) {
  extern __shared__ float dgain[];  // [N, C / N]
  __shared__ float scratch[device::kWarp];
  const int packs = static_cast<int>(p.width / N);
  for (int k = threadIdx.x; k < packs; k += blockDim.x) {
#pragma unroll
    for (int i = 0; i < N; ++i) dgain[i * packs + k] = 0;
  }
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const float r = p.r[row];
    const float projection = Project<X, Y, N>(p, row, r, dgain);
    WriteDx<X, Y, N, kAdds>(p, row, r,
                            device::BlockSum(projection, scratch) / p.width);
  }
  if (p.partial_dgain == nullptr) return;
  float* partial = p.partial_dgain + blockIdx.x * p.width;
  for (int k = threadIdx.x; k < packs; k += blockDim.x) {
    float sums[N];
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = dgain[i * packs + k];
    device::Store(partial + k * N, sums);
  }
}

constexpr int kRowGroups = 16;

// A block sums 32 columns: kRowGroups warps each sum a part of the rows, then
// the first warp adds the parts.
template <typename T>
__global__ void ColumnSums(const ColumnSumsParams p) {
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

template <typename X, typename Y, int N>
cudaError_t LaunchForward(const RmsNormParams& p, cudaStream_t stream) {
  const auto kernel =
      p.delta != nullptr ? Forward<X, Y, N, true> : Forward<X, Y, N, false>;
  kernel<<<p.rows, Threads(p.width / N), 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename X, typename Y, int N>
cudaError_t LaunchBackward(const RmsNormParams& p, cudaStream_t stream) {
  const auto kernel =
      p.d_delta != nullptr ? Backward<X, Y, N, true> : Backward<X, Y, N, false>;
  kernel<<<p.row_groups, Threads(p.width / N), p.width * sizeof(float),
           stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchRmsNormForward(const RmsNormParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithTypes(p, [&]<typename X, typename Y>(X, Y) {
    return CanPack<X, Y>(p) ? LaunchForward<X, Y, kRowPack<X, Y>>(p, stream)
                            : LaunchForward<X, Y, 1>(p, stream);
  });
}

cudaError_t LaunchRmsNormBackward(const RmsNormParams& p, cudaStream_t stream) {
  if (p.row_groups == 0) return cudaSuccess;
  return WithTypes(p, [&]<typename X, typename Y>(X, Y) {
    return CanPack<X, Y>(p) ? LaunchBackward<X, Y, kRowPack<X, Y>>(p, stream)
                            : LaunchBackward<X, Y, 1>(p, stream);
  });
}

cudaError_t LaunchColumnSums(const ColumnSumsParams& p, cudaStream_t stream) {
  const int64_t blocks = (p.width + device::kWarp - 1) / device::kWarp;
  return WithType(p.type, [&]<typename T>(T) {
    ColumnSums<T><<<blocks, kRowGroups * device::kWarp, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace tessera
