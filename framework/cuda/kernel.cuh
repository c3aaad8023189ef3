#ifndef FRAMEWORK_CUDA_KERNEL_CUH_
#define FRAMEWORK_CUDA_KERNEL_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "framework/cuda/float_type.h"

// Helpers shared by our kernels: conversions to and from FP32, 16-byte loads
// and stores, sums over a warp and a thread block, launches that overlap, and,
// on the host, the choice of a template instantiation.

namespace tessera {
namespace device {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 512;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half FromFloat(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat(float x) {
  return __float2bfloat16_rn(x);
}

// x as a tensor of T would hold it.
template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return ToFloat(FromFloat<T>(x));
}

// N consecutive elements that one instruction can move; aligned to their size.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T v[N];
};

// The number of elements, out of N consecutive ones, that one instruction
// moves.
template <typename T, int N>
inline constexpr int kMove = std::min<int>(N, 16 / sizeof(T));

template <int N, typename T>
__device__ __forceinline__ void Load(const T* p, float (&out)[N]) {
  constexpr int kStep = kMove<T, N>;
#pragma unroll
  for (int begin = 0; begin < N; begin += kStep) {
    const auto pack = *reinterpret_cast<const Pack<T, kStep>*>(p + begin);
#pragma unroll
    for (int i = 0; i < kStep; ++i) out[begin + i] = ToFloat(pack.v[i]);
  }
}

template <int N, typename T>
__device__ __forceinline__ void Store(T* p, const float (&values)[N]) {
  constexpr int kStep = kMove<T, N>;
#pragma unroll
  for (int begin = 0; begin < N; begin += kStep) {
    Pack<T, kStep> pack;
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      pack.v[i] = FromFloat<T>(values[begin + i]);
    }
    *reinterpret_cast<Pack<T, kStep>*>(p + begin) = pack;
  }
}

// exp for results that are stored as T. For a 16-bit T the hardware's, whose
// error of about 2^-21 does not show.
template <typename T>
__device__ __forceinline__ float Exp(float x) {
  return sizeof(T) < sizeof(float) ? __expf(x) : expf(x);
}

template <typename Sum>
__device__ __forceinline__ Sum WarpSum(Sum x) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    x += __shfl_xor_sync(0xffffffff, x, lane);
  }
  return x;
}

// The sum over the thread block, returned to every thread. The order of
// additions is the same on every run. `scratch` holds kWarp numbers; blockDim.x
// is a multiple of kWarp. The second barrier allows the next call to reuse
// `scratch`.
template <typename Sum>
__device__ __forceinline__ Sum BlockSum(Sum x, Sum* scratch) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  x = WarpSum(x);
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  x = lane < blockDim.x / kWarp ? scratch[lane] : 0;
  x = WarpSum(x);
  __syncthreads();
  return x;
}

// Programmatic dependent launch (CUDA programming guide), of which our machine
// code for compute capability 9.0 makes use. Once each block has called this or
// ended, the next kernel of the stream may begin, if LaunchEarly() launched it.
__device__ __forceinline__ void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// In a kernel of LaunchEarly(): waits until the kernel before it has ended.
__device__ __forceinline__ void WaitForKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Brings the cache line at `p` into L2.
__device__ __forceinline__ void Prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace device

// Host side: the choice of an instantiation.

// Number of elements in 16 bytes.
template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

inline bool IsAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

// The number of threads, in whole warps, for `items` items: one item per
// thread, or more in a loop if they exceed `most`.
inline int Threads(int64_t items, int most = device::kMaxThreads) {
  const int64_t warps = (items + device::kWarp - 1) / device::kWarp;
  return static_cast<int>(
      std::clamp<int64_t>(warps * device::kWarp, device::kWarp, most));
}

// Whether this source is compiled for compute capability 9.0, too.
template <typename...>
constexpr bool HasHopperCode() {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture == 900) return true;
  }
  return false;
}

// Allows a kernel `shared` bytes of dynamic shared memory and asks for the
// largest carveout. Blocks of two kernels share a multiprocessor only if both
// ask for the same.
template <typename... Params>
cudaError_t ShareMultiprocessor(void (*kernel)(Params...), size_t shared) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel,
                              cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

// Launches a kernel that may begin before the one before it in the stream has
// ended. It calls WaitForKernelBefore() before it reads what other kernels of
// the stream write and before it writes. Its library is built
// PORTABLE_AND_HOPPER: without the code for 9.0 nothing would wait there. On
// other GPUs this is a plain launch.
template <typename... Params>
cudaError_t LaunchEarly(void (*kernel)(Params...), dim3 blocks, int threads,
                        size_t shared, cudaStream_t stream,
                        const std::type_identity_t<Params>&... params) {
  static_assert(HasHopperCode<Params...>(), "build it PORTABLE_AND_HOPPER");
  int device = 0, major = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  const cudaError_t error =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {.gridDim = blocks,
                                     .blockDim = dim3(threads),
                                     .dynamicSmemBytes = shared,
                                     .stream = stream,
                                     .attrs = &early,
                                     .numAttrs = major == 9 ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kernel, params...);
}

// Calls fn with a value of the C++ type that corresponds to `type`.
template <typename Fn>
cudaError_t WithType(FloatType type, const Fn& fn) {
  switch (type) {
    case FloatType::kFloat:
      return fn(float{});
    case FloatType::kHalf:
      return fn(__half{});
    case FloatType::kBFloat16:
      return fn(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_KERNEL_CUH_
