#include <cstdint>
#include <limits>
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

// One thread per group.
__global__ void AdamWPrepare(const __grid_constant__ AdamWOptions options,
                             AdamWScalars scalars,
                             AdamWCoefficients* prepared) {
  const bool skips = scalars.skip != nullptr && *scalars.skip;
  if (threadIdx.x == 0) *scalars.skips = skips;
  if (skips) return;
  const int64_t step = *scalars.step + 1;
  __syncthreads();
  if (threadIdx.x == 0) *scalars.step = step;
  const float scale = scalars.grad_scale == nullptr ? 1 : *scalars.grad_scale;
  prepared[threadIdx.x] = MakeAdamWCoefficients(
      options, PrepareAdamWStep(options, *scalars.lr, scale, step),
      options.groups[threadIdx.x]);
}

// Elements per thread: 16 bytes of state.
template <typename State>
inline constexpr int kElements = 16 / sizeof(State);
template <typename State>
inline constexpr int kVectors = kAdamWChunk / kElements<State>;  // per chunk

// The range of a chunk. `first_chunk` is that of the thread block; all of its
// threads call this.
__device__ __forceinline__ AdamWRange RangeOf(const AdamWBuffers& buffers,
                                              int first_chunk, int chunk) {
  int before = 0;
  for (int base = 0; base < buffers.num_ranges; base += kThreads) {
    const int r = base + static_cast<int>(threadIdx.x);
    before += __syncthreads_count(r < buffers.num_ranges &&
                                  buffers.ranges[r].end <= first_chunk);
  }
  const AdamWRange* range = buffers.ranges + before;
  while (range->end <= chunk) ++range;
  return *range;
}

// Loads vector `i` of the weights, in whatever form they are, and returns the
// range that it is in. `first` is the vector of the block's first thread; all
// threads of the block call this.
template <typename State, typename Rounded, int N>
__device__ __forceinline__ AdamWRange LoadWeights(const AdamWBuffers& buffers,
                                                  unsigned first, unsigned i,
                                                  float (&p)[N]) {
  AdamWRange range = {.form = AdamWRange::Form::kMaster};
  if constexpr (!std::is_same_v<State, Rounded>) {
    range = RangeOf(buffers, static_cast<int>(first / kVectors<State>),
                    static_cast<int>(i / kVectors<State>));
  }
  const unsigned at = ShiftedVector(i, range.shift, kVectors<State>);
  if (range.form == AdamWRange::Form::kSplit) {
    LoadSplit(buffers, int64_t{at} * N, p);
  } else {
    Load<State>(buffers.master, at, p);
  }
  return range;
}

// Stores what LoadWeights() loaded, also rounded where there is a shadow.
template <typename State, typename Rounded, int N>
__device__ __forceinline__ void StoreWeights(const float (&p)[N],
                                             const AdamWRange& range,
                                             unsigned i,
                                             const AdamWBuffers& buffers) {
  const unsigned at = ShiftedVector(i, range.shift, kVectors<State>);
  if (range.form == AdamWRange::Form::kSplit) {
    StoreSplit(p, int64_t{at} * N, buffers);
    return;
  }
  Store<State>(p, buffers.master, at);
  if (range.form == AdamWRange::Form::kMasterAndShadow) {
    Store<Rounded>(p, buffers.shadow,
                   ShiftedVector(i, range.shadow_shift, kVectors<State>));
  }
}

// Each thread updates neighbouring elements once, so that every access of a
// warp is contiguous and new blocks always have loads in flight. A loop over a
// grid of resident blocks took 1.14 times as long on an H200 (2.7B: 23.4 ms
// instead of 20.6), and so did five blocks per multiprocessor instead of six.
template <typename State, typename Grad, typename Rounded>
__global__ void __launch_bounds__(kThreads, sizeof(State) == 4 ? 6 : 4)
    AdamWUpdate(const __grid_constant__ AdamWBuffers buffers, unsigned begin,
                unsigned last, const AdamWCoefficients* prepared,
                const bool* skips) {
  constexpr int N = kElements<State>;
  const unsigned first = begin + blockIdx.x * kThreads;
  const bool inside = first + threadIdx.x <= last;
  const unsigned i = inside ? first + threadIdx.x : last;
  float p[N], m[N], v[N], g[N];
  Load<State>(buffers.exp_avg, i, m);
  Load<State>(buffers.exp_avg_sq, i, v);
  Load<Grad>(buffers.grad, i, g);
  const AdamWRange range = LoadWeights<State, Rounded>(buffers, first, i, p);
  if (!inside || *skips) return;
  const int group = buffers.chunk_groups == nullptr
                        ? 0
                        : buffers.chunk_groups[i / kVectors<State>];
  const AdamWCoefficients c = prepared[group];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const AdamWElement x = UpdateAdamW({p[k], m[k], v[k]}, g[k], c);
    p[k] = x.param;
    m[k] = x.exp_avg;
    v[k] = x.exp_avg_sq;
  }
  Store<State>(m, buffers.exp_avg, i);
  Store<State>(v, buffers.exp_avg_sq, i);
  StoreWeights<State, Rounded>(p, range, i, buffers);
}

// Each thread has neighbouring elements, as in AdamWUpdate.
template <typename State, typename Rounded>
__global__ void __launch_bounds__(kThreads)
    Ema(const __grid_constant__ AdamWBuffers buffers, EmaBuffers ema,
        EmaPass pass, unsigned begin, unsigned last) {
  constexpr int N = kElements<State>;
  const unsigned first = begin + blockIdx.x * kThreads;
  const bool inside = first + threadIdx.x <= last;
  const unsigned i = inside ? first + threadIdx.x : last;
  float p[N], average[N];
  Load<float>(ema.average, i, average);
  const AdamWRange range = LoadWeights<State, Rounded>(buffers, first, i, p);
  if (!inside || (pass == EmaPass::kUpdate && *ema.skips)) return;
  const float weight = EmaWeight(ema.options, *ema.step);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const EmaElement x =
        ApplyEma<sizeof(State) == 2>(pass, {p[k], average[k]}, weight);
    p[k] = x.param;
    average[k] = x.average;
  }
  Store<float>(average, ema.average, i);
  if (pass != EmaPass::kExchange) return;
  StoreWeights<State, Rounded>(p, range, i, buffers);
}

// The vectors [first, last] of the weights, one per thread. 32 bits, which save
// registers, count those of 17 G elements.
struct Vectors {
  unsigned first, last;

  unsigned blocks() const { return (last - first) / kThreads + 1; }
};

// Calls launch.operator()<State, Grad, Rounded>(Vectors) for the dtypes of
// `buffers` and elements [begin, end).
template <typename Fn>
cudaError_t LaunchOnWeights(const AdamWBuffers& buffers, int64_t begin,
                            int64_t end, const Fn& launch) {
  if (begin == end) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  const auto launch_one =
      [&]<typename State, typename Grad, typename Rounded>() {
        const int64_t last = end / kElements<State> - 1;
        if (last > std::numeric_limits<unsigned>::max()) {
          error = cudaErrorInvalidValue;
          return;
        }
        launch.template operator()<State, Grad, Rounded>(
            Vectors{static_cast<unsigned>(begin / kElements<State>),
                    static_cast<unsigned>(last)});
        error = cudaGetLastError();
      };
  if (!VisitAdamWDtypes<float, __nv_bfloat16, __half>(buffers, launch_one)) {
    return cudaErrorInvalidValue;
  }
  return error;
}

}  // namespace

cudaError_t LaunchAdamWPrepare(const AdamWScalars& scalars,
                               const AdamWOptions& options,
                               AdamWCoefficients* prepared,
                               cudaStream_t stream) {
  AdamWPrepare<<<1, kMaxAdamWGroups, 0, stream>>>(options, scalars, prepared);
  return cudaGetLastError();
}

cudaError_t LaunchAdamWUpdate(const AdamWBuffers& buffers, int64_t begin,
                              int64_t end, const bool* skips,
                              const AdamWCoefficients* prepared,
                              cudaStream_t stream) {
  const auto launch =
      [&]<typename State, typename Grad, typename Rounded>(const Vectors& v) {
        AdamWUpdate<State, Grad, Rounded><<<v.blocks(), kThreads, 0, stream>>>(
            buffers, v.first, v.last, prepared, skips);
      };
  return LaunchOnWeights(buffers, begin, end, launch);
}

cudaError_t LaunchEma(const AdamWBuffers& buffers, const EmaBuffers& ema,
                      EmaPass pass, int64_t begin, int64_t end,
                      cudaStream_t stream) {
  const auto launch =
      [&]<typename State, typename Grad, typename Rounded>(const Vectors& v) {
        Ema<State, Rounded><<<v.blocks(), kThreads, 0, stream>>>(
            buffers, ema, pass, v.first, v.last);
      };
  return LaunchOnWeights(buffers, begin, end, launch);
}

}  // namespace tessera
