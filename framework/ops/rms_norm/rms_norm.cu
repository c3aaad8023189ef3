#include <type_traits>

#include "framework/cuda/kernel.cuh"
#include "framework/ops/rms_norm/rms_norm_launch.h"

namespace tessera {
namespace {

// A thread block handles blockDim.y rows at a time, with blockDim.x threads,
// whole warps, for each.

constexpr int kMaxWarps = device::kMaxThreads / device::kWarp;
// Small blocks start and end at different times, which keeps loads in flight.
constexpr int kForwardThreads = 256;

template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return device::ToFloat(device::FromFloat<T>(x));
}

// The part of a row that one thread handles: kPacks packs of N elements, pack i
// at column (threadIdx.x + i * blockDim.x) * N, as they lie in memory. Nothing
// waits for a load before the first use of its values.
template <typename T, int N, int kPacks>
struct RowPart {
  device::Pack<T, N> packs[kPacks];

  // Reads the row that begins at `row`; null reads nothing.
  __device__ __forceinline__ void Read(const void* row, int64_t width) {
    if (row == nullptr) return;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c < width) {
        packs[i] = *reinterpret_cast<const device::Pack<T, N>*>(
            static_cast<const T*>(row) + c);
      }
    }
  }
  __device__ __forceinline__ float At(int i, int j) const {
    return device::ToFloat(packs[i].v[j]);
  }
};

// Row `row` of a tensor of T, or null.
template <typename T>
__device__ __forceinline__ const T* RowAt(const void* rows, int64_t row,
                                          int64_t width) {
  return rows == nullptr ? nullptr : static_cast<const T*>(rows) + row * width;
}

// The sum over the threads of a row, returned to each. The order of additions
// is the same on every run. The rows of a block do not wait for each other.
// `scratch` holds a number per warp of the block; the next call needs another.
__device__ __forceinline__ float RowSum(float x, float* scratch) {
  x = device::WarpSum(x);
  const int warps = blockDim.x / device::kWarp;
  if (warps == 1) return x;
  const int lane = threadIdx.x % device::kWarp;
  scratch += threadIdx.y * warps;
  if (lane == 0) scratch[threadIdx.x / device::kWarp] = x;
  // Barrier 0 is that of __syncthreads().
  asm volatile("bar.sync %0, %1;"
               :
               : "r"(threadIdx.y + 1), "r"(blockDim.x)
               : "memory");
  return device::WarpSum(lane < warps ? scratch[lane] : 0);
}

template <typename X, typename Y, int N, int kPacks, bool kAdds>
__global__ void __launch_bounds__(device::kMaxThreads)
    Forward(const RmsNormParams p) {
  __shared__ float scratch[kMaxWarps];
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t width = p.width;
  if (row >= p.rows) return;
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
      if constexpr (kAdds) v[i][j] = Rounded<X>(v[i][j] + delta.At(i, j));
      squares += v[i][j] * v[i][j];
    }
    if constexpr (kAdds) {
      device::Store(static_cast<X*>(p.sum) + row * width + c, v[i]);
    }
  }
  const float scale = rsqrtf(RowSum(squares, scratch) / width + p.eps);
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

// Block g processes rows g, g + gridDim.x, ... Its threads load a row while
// they compute the one before. A thread has the same columns in every row, so
// it sums their part of the gain's gradient, dy * x_hat, in registers; at the
// end the block adds the parts of its blockDim.y threads with the same columns.
template <typename X, typename Y, int N, int kPacks, bool kAdds>
__global__ void __launch_bounds__(device::kMaxThreads)
    Backward(const RmsNormParams p) {
  __shared__ float scratch[2][kMaxWarps];
  extern __shared__ __align__(16) float parts[];  // [blockDim.y - 1, width]
  const int64_t width = p.width, step = int64_t{gridDim.x} * blockDim.y;
  float dgain[kPacks][N] = {};
  BackwardRow<X, Y, N, kPacks, kAdds> now, next;
  int64_t row = int64_t{threadIdx.y} * gridDim.x + blockIdx.x;
  now.Read(p, row);
  for (int turn = 0; row < p.rows; row += step, turn ^= 1) {
    next.Read(p, row + step);
    // This thread's part of sum_C(s x_hat), s = dy * gain.
    float projection = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c >= width) break;
      float g[N];
      device::Load(p.gain + c, g);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float product = now.dy.At(i, j) * (now.x.At(i, j) * now.r);
        dgain[i][j] += product;
        projection += product * g[j];
      }
    }
    const float mean = RowSum(projection, scratch[turn]) / width;
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
            v[j] = __fadd_rn(now.d_sum.At(i, j), Rounded<X>(v[j]));
          }
          v[j] = Rounded<X>(v[j]);
        }
      }
      if constexpr (kAdds) {
        device::Store(static_cast<Y*>(p.d_delta) + row * width + c, v);
      }
      device::Store(static_cast<X*>(p.dx) + row * width + c, v);
    }
    now = next;
  }
  if (p.partial_dgain == nullptr) return;
  const auto for_each_pack = [&](const auto& fn) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int c = (threadIdx.x + i * blockDim.x) * N;
      if (c < width) fn(dgain[i], c);
    }
  };
  if (threadIdx.y > 0) {
    for_each_pack([&](const float(&part)[N], int c) {
      device::Store(parts + (threadIdx.y - 1) * width + c, part);
    });
  }
  __syncthreads();
  if (threadIdx.y > 0) return;
  for_each_pack([&](float(&sum)[N], int c) {
    for (int y = 1; y < blockDim.y; ++y) {
      float part[N];
      device::Load(parts + (y - 1) * width + c, part);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += part[j];
    }
    device::Store(p.partial_dgain + blockIdx.x * width + c, sum);
  });
}

constexpr int kRowGroups = 32;

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

// Calls fn with the number of packs of N that a thread handles, as a constant:
// 16 numbers, or 32 in the widest rows.
template <int N, typename Fn>
cudaError_t WithPacks(int64_t width, const Fn& fn) {
  constexpr int kMost = kMaxRmsNormWidth / (N * device::kMaxThreads);
  constexpr int kFew = kMost / 2;
  if (width <= kFew * N * device::kMaxThreads) {
    return fn(std::integral_constant<int, kFew>());
  }
  return fn(std::integral_constant<int, kMost>());
}

// The block: the threads of a row, and as many rows as fit into `most` threads.
template <int N, int kPacks>
dim3 BlockFor(const RmsNormParams& p, int most) {
  const int threads = Threads((p.width + N * kPacks - 1) / (N * kPacks));
  return dim3(threads, std::max(1, most / threads));
}

template <typename X, typename Y, int N>
cudaError_t LaunchForward(const RmsNormParams& p, cudaStream_t stream) {
  return WithPacks<N>(
      p.width, [&]<int kPacks>(std::integral_constant<int, kPacks>) {
        auto kernel = Forward<X, Y, N, kPacks, false>;
        if constexpr (kCanAdd<X, Y>) {
          if (p.delta != nullptr) kernel = Forward<X, Y, N, kPacks, true>;
        }
        const dim3 block = BlockFor<N, kPacks>(p, kForwardThreads);
        kernel<<<(p.rows + block.y - 1) / block.y, block, 0, stream>>>(p);
        return cudaGetLastError();
      });
}

template <typename X, typename Y, int N>
cudaError_t LaunchBackward(const RmsNormParams& p, cudaStream_t stream) {
  return WithPacks<N>(
      p.width, [&]<int kPacks>(std::integral_constant<int, kPacks>) {
        auto kernel = Backward<X, Y, N, kPacks, false>;
        if constexpr (kCanAdd<X, Y>) {
          if (p.d_delta != nullptr) kernel = Backward<X, Y, N, kPacks, true>;
        }
        const dim3 block = BlockFor<N, kPacks>(p, device::kMaxThreads);
        // At most 32 KiB.
        const size_t parts = (block.y - 1) * p.width * sizeof(float);
        kernel<<<p.row_groups, block, parts, stream>>>(p);
        return cudaGetLastError();
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
    ColumnSums<T><<<blocks, kRowGroups * device::kWarp, 0, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace tessera
