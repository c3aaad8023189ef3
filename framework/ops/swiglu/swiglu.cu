#include "framework/cuda/kernel.cuh"
#include "framework/ops/swiglu/swiglu_launch.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// A block per row and per kThreads packs of columns.
template <typename T, int N>
__global__ void SwiGluForward(const T* ab, T* h, int64_t width) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
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
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
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

template <typename T>
bool CanPack(const SwiGluParams& p) {
  return p.width % kPack<T> == 0 && IsAligned(p.ab) && IsAligned(p.h) &&
         IsAligned(p.dh) && IsAligned(p.d_ab);
}

// Launches a kernel whose threads have `pack` columns of a row each.
template <typename... Params>
cudaError_t LaunchPacks(void (*kernel)(Params...), const SwiGluParams& p,
                        int pack, cudaStream_t stream,
                        const std::type_identity_t<Params>&... params) {
  const int64_t packs = p.width / pack;
  const int threads = Threads(packs, kThreads);
  return LaunchEarly(kernel, dim3(p.rows, (packs + threads - 1) / threads),
                     threads, 0, stream, params...);
}

}  // namespace

cudaError_t LaunchSwiGluForward(const SwiGluParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    const auto launch = [&](auto kernel, int pack) {
      return LaunchPacks(kernel, p, pack, stream, static_cast<const T*>(p.ab),
                         static_cast<T*>(p.h), p.width);
    };
    return CanPack<T>(p) ? launch(SwiGluForward<T, kPack<T>>, kPack<T>)
                         : launch(SwiGluForward<T, 1>, 1);
  });
}

cudaError_t LaunchSwiGluBackward(const SwiGluParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    const auto launch = [&](auto kernel, int pack) {
      return LaunchPacks(kernel, p, pack, stream, static_cast<const T*>(p.ab),
                         static_cast<const T*>(p.dh), static_cast<T*>(p.d_ab),
                         p.width);
    };
    return CanPack<T>(p) ? launch(SwiGluBackward<T, kPack<T>>, kPack<T>)
                         : launch(SwiGluBackward<T, 1>, 1);
  });
}

}  // namespace tessera
