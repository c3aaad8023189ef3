#include "framework/cuda/kernel.cuh"
#include "framework/ops/swiglu/swiglu_launch.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// A block per row and per kThreads packs of columns.
template <typename T, int N>
__global__ void SwiGluForward(const T* ab, T* h, int64_t width) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  const int64_t row = blockIdx.x;
  const T* a_row = ab + row * 2 * width;
  float a[N], b[N];
  device::Load(a_row + column, a);
  device::Load(a_row + width + column, b);
#pragma unroll
  for (int i = 0; i < N; ++i) a[i] = a[i] / (1 + device::Exp<T>(-a[i])) * b[i];
  device::Store(h + row * width + column, a);
}

template <typename T, int N>
__global__ void SwiGluBackward(const T* ab, const T* dh, T* d_ab,
                               int64_t width) {
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  const int64_t row = blockIdx.x;
  const int64_t a_offset = row * 2 * width + column;
  float a[N], b[N], d[N];
  device::Load(ab + a_offset, a);
  device::Load(ab + a_offset + width, b);
  device::Load(dh + row * width + column, d);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float sigma = 1 / (1 + device::Exp<T>(-a[i]));
    const float db = d[i] * a[i] * sigma;
    a[i] = d[i] * b[i] * sigma * (1 + a[i] * (1 - sigma));
    b[i] = db;
  }
  device::Store(d_ab + a_offset, a);
  device::Store(d_ab + a_offset + width, b);
}

struct Launch {
  dim3 grid;
  int threads = 0;
};

Launch MakeLaunch(const SwiGluParams& p, int pack) {
  const int64_t packs = p.width / pack;
  const int threads = Threads(packs, kThreads);
  return {.grid = dim3(p.rows, (packs + threads - 1) / threads),
          .threads = threads};
}

template <typename T>
bool CanPack(const SwiGluParams& p) {
  return p.width % kPack<T> == 0 && IsAligned(p.ab) && IsAligned(p.h) &&
         IsAligned(p.dh) && IsAligned(p.d_ab);
}

}  // namespace

cudaError_t LaunchSwiGluForward(const SwiGluParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    const T* ab = static_cast<const T*>(p.ab);
    T* h = static_cast<T*>(p.h);
    if (CanPack<T>(p)) {
      const Launch launch = MakeLaunch(p, kPack<T>);
      SwiGluForward<T, kPack<T>>
          <<<launch.grid, launch.threads, 0, stream>>>(ab, h, p.width);
    } else {
      const Launch launch = MakeLaunch(p, 1);
      SwiGluForward<T, 1>
          <<<launch.grid, launch.threads, 0, stream>>>(ab, h, p.width);
    }
    return cudaGetLastError();
  });
}

cudaError_t LaunchSwiGluBackward(const SwiGluParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    const T* ab = static_cast<const T*>(p.ab);
    const T* dh = static_cast<const T*>(p.dh);
    T* d_ab = static_cast<T*>(p.d_ab);
    if (CanPack<T>(p)) {
      const Launch launch = MakeLaunch(p, kPack<T>);
      SwiGluBackward<T, kPack<T>>
          <<<launch.grid, launch.threads, 0, stream>>>(ab, dh, d_ab, p.width);
    } else {
      const Launch launch = MakeLaunch(p, 1);
      SwiGluBackward<T, 1>
          <<<launch.grid, launch.threads, 0, stream>>>(ab, dh, d_ab, p.width);
    }
    return cudaGetLastError();
  });
}

}  // namespace tessera
