#include "framework/cuda/kernel.cuh"
#include "framework/dist/sum_addends_kernel.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SumAddends(const T* __restrict__ addends, int count, int64_t numel,
               T* __restrict__ sum) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (begin >= numel) return;
  float total[N];
  device::Load(addends + begin, total);
#pragma unroll 4
  for (int row = 1; row < count; ++row) {
    float addend[N];
    device::Load(addends + row * numel + begin, addend);
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] += addend[i];
  }
  device::Store(sum + begin, total);
}

}  // namespace

cudaError_t LaunchSumAddends(const void* addends, int count, int64_t numel,
                             FloatType type, void* sum, cudaStream_t stream) {
  return WithType(type, [&]<typename T>(T) {
    const auto launch = [&]<int N>() {
      const int64_t threads = (numel + N - 1) / N;
      const auto blocks =
          static_cast<unsigned>((threads + kThreads - 1) / kThreads);
      SumAddends<T, N><<<blocks, kThreads, 0, stream>>>(
          static_cast<const T*>(addends), count, numel, static_cast<T*>(sum));
      return cudaGetLastError();
    };
    const bool packs =
        numel % kPack<T> == 0 && IsAligned(addends) && IsAligned(sum);
    return packs ? launch.template operator()<kPack<T>>()
                 : launch.template operator()<1>();
  });
}

}  // namespace tessera
