#include <algorithm>
#include <type_traits>

#include "framework/cuda/kernel.cuh"
#include "framework/optim/adamw_kernel.h"
#include "framework/params/split_float.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// Elements [index N, index N + N) of a buffer of T.
template <typename T, int N>
__device__ __forceinline__ void Load(const void* from, int64_t index,
                                     float (&to)[N]) {
  device::Load(static_cast<const T*>(from) + index * N, to);
}

template <typename T, int N>
__device__ __forceinline__ void Store(const float (&from)[N], void* to,
                                      int64_t index) {
  device::Store(static_cast<T*>(to) + index * N, from);
}

// Elements [at, at + N) of the weights in two halves.
template <int N>
__device__ __forceinline__ void LoadSplit(const AdamWBuffers& buffers,
                                          int64_t at, float (&to)[N]) {
  const auto high =
      *reinterpret_cast<const device::Pack<uint16_t, N>*>(buffers.high + at);
  const auto low =
      *reinterpret_cast<const device::Pack<int16_t, N>*>(buffers.low + at);
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = JoinHalves({high.v[k], low.v[k]});
}

template <int N>
__device__ __forceinline__ void StoreSplit(const float (&from)[N], int64_t at,
                                           const AdamWBuffers& buffers) {
  device::Pack<uint16_t, N> high;
  device::Pack<int16_t, N> low;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const SplitFloat x = SplitInHalves(from[k]);
    high.v[k] = x.high;
    low.v[k] = x.low;
  }
  *reinterpret_cast<device::Pack<uint16_t, N>*>(buffers.high + at) = high;
  *reinterpret_cast<device::Pack<int16_t, N>*>(buffers.low + at) = low;
}

__global__ void PrepareStep(const __grid_constant__ AdamWOptions options,
                            AdamWScalars scalars, AdamWStep* prepared) {
  if (scalars.skip != nullptr && *scalars.skip) return;
  const float scale = scalars.grad_scale == nullptr ? 1 : *scalars.grad_scale;
  *prepared = PrepareAdamWStep(options, *scalars.lr, scale, ++*scalars.step);
}

// Elements per thread: 16 bytes of state.
template <typename State>
inline constexpr int kElements = 16 / sizeof(State);
template <typename State>
inline constexpr int kVectors = kAdamWChunk / kElements<State>;  // per chunk

// Updates the elements of vector i, whose weights are in `range`.
template <typename State, typename Grad, typename Rounded>
__device__ __forceinline__ void UpdateVector(
    const AdamWBuffers& buffers, const AdamWCoefficients* coefficients,
    const AdamWRange& range, int64_t i) {
  constexpr int N = kElements<State>;
  float p[N], m[N], v[N], g[N];
  const int64_t at = i + int64_t{range.shift} * kVectors<State>;
  if (range.form == AdamWRange::Form::kSplit) {
    LoadSplit(buffers, at * N, p);
  } else {
    Load<State>(buffers.master, at, p);
  }
  Load<State>(buffers.exp_avg, i, m);
  Load<State>(buffers.exp_avg_sq, i, v);
  Load<Grad>(buffers.grad, i, g);
  const int group = buffers.chunk_groups == nullptr
                        ? 0
                        : buffers.chunk_groups[i / kVectors<State>];
  const AdamWCoefficients c = coefficients[group];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const AdamWElement x = UpdateAdamW({p[k], m[k], v[k]}, g[k], c);
    p[k] = x.param;
    m[k] = x.exp_avg;
    v[k] = x.exp_avg_sq;
  }
  Store<State>(m, buffers.exp_avg, i);
  Store<State>(v, buffers.exp_avg_sq, i);
  if (range.form == AdamWRange::Form::kSplit) {
    StoreSplit(p, at * N, buffers);
    return;
  }
  Store<State>(p, buffers.master, at);
  if (range.form == AdamWRange::Form::kMasterAndShadow) {
    Store<Rounded>(p, buffers.shadow,
                   i + int64_t{range.shadow_shift} * kVectors<State>);
  }
}

// Each thread updates neighbouring elements at a time, so that every access of
// a warp is contiguous. With FP32 state, 48 registers, at most what five thread
// blocks per multiprocessor can have, allow 1,280 threads with 56 bytes each in
// flight: 70 KiB. An H200 (4.8 TB/s at 1 us of loaded latency) needs 36 KiB.
template <typename State, typename Grad, typename Rounded>
__global__ void __launch_bounds__(kThreads, sizeof(State) == 4 ? 5 : 4)
    UpdateElements(const __grid_constant__ AdamWOptions options,
                   const __grid_constant__ AdamWBuffers buffers,
                   const AdamWStep* prepared, const bool* skip) {
  if (skip != nullptr && *skip) return;
  __shared__ AdamWCoefficients coefficients[kMaxAdamWGroups];
  if (threadIdx.x < kMaxAdamWGroups) {
    coefficients[threadIdx.x] =
        MakeAdamWCoefficients(options, *prepared, options.groups[threadIdx.x]);
  }
  __syncthreads();
  const int64_t num_vectors = buffers.num_elements / kElements<State>;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if constexpr (std::is_same_v<State, Rounded>) {
    constexpr AdamWRange kInOrder = {.form = AdamWRange::Form::kMaster};
    for (; i < num_vectors; i += stride) {
      UpdateVector<State, Grad, Rounded>(buffers, coefficients, kInOrder, i);
    }
  } else {
    for (const AdamWRange* next = buffers.ranges; i < num_vectors; ++next) {
      const AdamWRange range = *next;
      const int64_t end = int64_t{range.end} * kVectors<State>;
      for (; i < end; i += stride) {
        UpdateVector<State, Grad, Rounded>(buffers, coefficients, range, i);
      }
    }
  }
}

// As many blocks as the device can hold at once, fewer for small buffers.
template <typename Kernel>
cudaError_t GridSize(Kernel kernel, int64_t num_vectors, int* blocks) {
  int device = 0, processors = 0, resident = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                 device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel,
                                                        kThreads, 0);
  const int64_t needed = (num_vectors + kThreads - 1) / kThreads;
  *blocks = static_cast<int>(
      std::min<int64_t>(needed, int64_t{processors} * resident));
  return error;
}

}  // namespace

cudaError_t LaunchAdamW(const AdamWBuffers& buffers,
                        const AdamWScalars& scalars,
                        const AdamWOptions& options, AdamWStep* prepared,
                        cudaStream_t stream) {
  PrepareStep<<<1, 1, 0, stream>>>(options, scalars, prepared);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || buffers.num_elements == 0) return error;
  const auto launch = [&]<typename State, typename Grad, typename Rounded>() {
    const auto kernel = UpdateElements<State, Grad, Rounded>;
    int blocks = 0;
    error = GridSize(kernel, buffers.num_elements / kElements<State>, &blocks);
    if (error != cudaSuccess) return;
    kernel<<<blocks, kThreads, 0, stream>>>(options, buffers, prepared,
                                            scalars.skip);
    error = cudaGetLastError();
  };
  if (!VisitAdamWDtypes<float, __nv_bfloat16, __half>(buffers, launch)) {
    return cudaErrorInvalidValue;
  }
  return error;
}

}  // namespace tessera
