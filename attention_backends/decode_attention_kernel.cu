#include <algorithm>

#include "attention_backends/decode_attention_kernel.h"
#include "framework/cuda/eight.cuh"
#include "framework/cuda/kernel.cuh"

// Flash-decoding (Dao et al. 2023): the keys of a head are divided among
// blocks, each of which keeps a running softmax; a second kernel joins them.
// A few lanes share a row of keys, 8 elements each, so that all loads are of 16
// bytes (32 in FP32). It is bound by reading the cache.

namespace tessera {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * device::kWarp;
constexpr int kElements = 8;    // of a row, for each lane
constexpr int kAhead = 4;       // rows that a lane loads at once
constexpr int kPrefetched = 4;  // turns
constexpr int kMostHeads = 4;   // more would spill registers
constexpr int kAtOnce = 8;      // splits that a thread joins at once

__device__ __forceinline__ int Lanes(int d) {
  int lanes = 1;
  while (lanes * kElements < d) lanes *= 2;
  return lanes;
}

// A softmax over some keys and the sum of their values, for one query head.
template <int N>
struct RunningSoftmax {
  float most, sum, values[N];

  __device__ __forceinline__ void Clear() {
    most = -INFINITY;
    sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = 0;
  }
  template <typename T>
  __device__ __forceinline__ void Add(float other_most, float other_sum,
                                      const float (&other)[N]) {
    const float top = fmaxf(most, other_most);
    if (top == -INFINITY) return;
    const float own = device::Exp<T>(most - top);
    const float its = device::Exp<T>(other_most - top);
    most = top;
    sum = sum * own + other_sum * its;
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = values[i] * own + other[i] * its;
  }
};

// Running softmaxes of one element, all loaded before any is added: one after
// another, each load would be waited for.
template <int kCount>
struct Parts {
  float mosts[kCount], sums[kCount], values[kCount];

  template <typename T>
  __device__ __forceinline__ void AddTo(RunningSoftmax<1>* x) const {
    float top = x->most;
#pragma unroll
    for (int j = 0; j < kCount; ++j) top = fmaxf(top, mosts[j]);
    if (top == -INFINITY) return;
    const float own = device::Exp<T>(x->most - top);
    x->most = top;
    x->sum *= own;
    x->values[0] *= own;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float its = device::Exp<T>(mosts[j] - top);
      x->sum += sums[j] * its;
      x->values[0] += values[j] * its;
    }
  }
};

// The keys that a block attends to.
struct Keys {
  int64_t position, begin, end;
};
__device__ __forceinline__ Keys KeysOf(const DecodeAttentionParams& p) {
  const int64_t position = *p.position;
  const int64_t first = p.before < position ? position - p.before : int64_t{0};
  const int64_t count = position + 1 - first;
  const int64_t share = (count + p.splits - 1) / p.splits;
  const int64_t begin = first + share * blockIdx.x;
  const int64_t end = begin + share;
  return {position, begin, end < position + 1 ? end : position + 1};
}

// The sum over `lanes` neighbouring lanes, a power of two.
__device__ __forceinline__ float SumOver(int lanes, float x) {
  for (int lane = lanes / 2; lane > 0; lane /= 2) {
    x += __shfl_xor_sync(0xffffffff, x, lane);
  }
  return x;
}

// Joins the running softmaxes of the lanes that have the same elements.
template <typename T>
__device__ __forceinline__ void JoinRows(int lanes,
                                         RunningSoftmax<kElements>* x) {
  for (int lane = lanes; lane < device::kWarp; lane *= 2) {
    float other[kElements];
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      other[i] = __shfl_xor_sync(0xffffffff, x->values[i], lane);
    }
    const float most = __shfl_xor_sync(0xffffffff, x->most, lane);
    const float sum = __shfl_xor_sync(0xffffffff, x->sum, lane);
    x->template Add<T>(most, sum, other);
  }
}

// One element of a head's result.
template <typename T>
__device__ __forceinline__ void WriteResult(const DecodeAttentionParams& p,
                                            int head, int element,
                                            const RunningSoftmax<1>& x) {
  float sum = x.sum, value = x.values[0];
  if (p.sinks != nullptr) {
    const float sink = p.sinks[head % p.h];
    const float top = fmaxf(x.most, sink), own = device::Exp<T>(x.most - top);
    sum = sum * own + device::Exp<T>(sink - top);
    value *= own;
  }
  static_cast<T*>(p.o)[int64_t{head} * p.d + element] =
      device::FromFloat<T>(value / sum);
}

// What JoinSplits() needs of it.
__device__ __forceinline__ void WritePartial(const DecodeAttentionParams& p,
                                             int head, int element,
                                             const RunningSoftmax<1>& x) {
  float* const partial =
      p.partials + (int64_t{blockIdx.x} * p.b * p.h + head) * (p.d + 2);
  partial[element] = x.values[0];
  if (element > 0) return;
  partial[p.d] = x.most;
  partial[p.d + 1] = x.sum;
}

// What a thread of DecodeAttention() works on. A row of keys is shared by
// `lanes` lanes, so a warp has `rows` rows at a time, and kAhead times as many
// in a turn.
template <typename T>
struct Work {
  const DecodeAttentionParams& p;
  const int lanes = Lanes(p.d), rows = device::kWarp / lanes;
  const int warp = threadIdx.x / device::kWarp,
            lane = threadIdx.x % device::kWarp;
  const int first = lane % lanes * kElements;  // element of this lane
  const bool used = first < p.d;
  const int key_head = static_cast<int>(blockIdx.y) % p.g,
            batch = static_cast<int>(blockIdx.y) / p.g;
  const int group = p.h / p.g;  // query heads of a key head
  const Keys keys = KeysOf(p);
  const int64_t row_size = int64_t{2} * p.b * p.g * p.d;
  // From a key to its value in the cache.
  const int64_t value = int64_t{p.b} * p.g * p.d;
  const T* const own =
      static_cast<const T*>(p.qkv) + int64_t{batch} * (p.h + 2 * p.g) * p.d;
  T* const cached =
      static_cast<T*>(p.cache) + int64_t{blockIdx.y} * p.d + first;

  __device__ __forceinline__ const T* Head(int head) const {
    return own + int64_t{head} * p.d;
  }
  __device__ __forceinline__ int64_t first_turn() const {
    return keys.begin + warp * rows * kAhead;
  }
  __device__ __forceinline__ int64_t turn() const {
    return kWarps * rows * kAhead;
  }
  __device__ __forceinline__ int64_t Row(int64_t turn, int ahead) const {
    return turn + ahead * rows + lane / lanes;
  }
};

// The angles by which RoPE (framework/ops/rope) rotates this lane's elements.
template <typename T>
struct Angles {
  float cos[kElements], sin[kElements];

  __device__ __forceinline__ explicit Angles(const Work<T>& work) {
    const DecodeAttentionParams& p = work.p;
    if (p.cos == nullptr || !work.used) return;
    const int half = p.d / 2;
    const int64_t row = p.rope_positions[work.batch] * half;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = work.first + e;
      const int pair = !p.halved ? i / 2 : i < half ? i : i - half;
      cos[e] = p.cos[row + pair];
      sin[e] = p.sin[row + pair];
    }
  }

  // This lane's elements of a head.
  __device__ __forceinline__ device::Eight<T> Rotate(const Work<T>& work,
                                                     int head) const {
    const DecodeAttentionParams& p = work.p;
    const T* const x = work.Head(head);
    if (!work.used) return {};
    if (p.cos == nullptr) return device::Eight<T>(x + work.first);
    __align__(16) T rotated[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int i = work.first + e;
      const int distance = p.halved ? p.d / 2 : 1;
      const bool is_second = p.halved ? i >= distance : i % 2 != 0;
      const float other =
          device::ToFloat(x[is_second ? i - distance : i + distance]);
      rotated[e] = device::FromFloat<T>(device::ToFloat(x[i]) * cos[e] +
                                        (is_second ? other : -other) * sin[e]);
    }
    return device::Eight<T>(rotated);
  }
};

// The rows that a lane reads at once. Those of earlier tokens, and the
// position, do not depend on the kernel before this one.
template <typename T>
struct Rows {
  device::Eight<T> keys[kAhead], values[kAhead];

  __device__ __forceinline__ void Read(const Work<T>& work, int64_t turn) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t row = work.Row(turn, a);
      if (!work.used || row >= work.keys.end || row == work.keys.position) {
        continue;
      }
      const T* const cached = work.cached + row * work.row_size;
      keys[a] = device::Eight<T>(cached);
      values[a] = device::Eight<T>(cached + work.value);
    }
  }

  // Brings the rows of the kPrefetched turns after `turn` into L2.
  __device__ __forceinline__ static void PrefetchAfter(const Work<T>& work,
                                                       int64_t turn) {
    constexpr int kSector = 32 / sizeof(T);  // elements
    if (!work.used || work.first % kSector != 0) return;
    const int64_t end = min(min(work.keys.end, work.keys.position),
                            turn + (kPrefetched + 1) * work.turn());
    for (turn += work.turn(); turn < end; turn += work.turn()) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int64_t row = work.Row(turn, a);
        if (row >= end) break;
        const T* const cached = work.cached + row * work.row_size;
        device::Prefetch(cached);
        device::Prefetch(cached + work.value);
      }
    }
  }

  // Inserts the current token's key and value, which are not in the cache yet;
  // also into the cache, if this block `keeps` them.
  __device__ __forceinline__ void AddCurrent(const Work<T>& work, int64_t turn,
                                             const device::Eight<T>& key,
                                             const device::Eight<T>& value,
                                             bool keeps) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t row = work.Row(turn, a);
      if (!work.used || row >= work.keys.end || row != work.keys.position) {
        continue;
      }
      keys[a] = key;
      values[a] = value;
      if (!keeps) continue;
      T* const cached = work.cached + row * work.row_size;
      keys[a].StoreTo(cached);
      values[a].StoreTo(cached + work.value);
    }
  }
};

// Attends from kHeads query heads of the key head, `first_head` the first.
// Waits for the kernel before once it has requested what does not depend on it.
template <typename T, int kHeads>
__device__ __forceinline__ void Attend(
    const Work<T>& work, int first_head,
    RunningSoftmax<kElements> (&softmax)[kHeads]) {
  const DecodeAttentionParams& p = work.p;
  Rows<T> rows;
  rows.Read(work, work.first_turn());
  rows.PrefetchAfter(work, work.first_turn());
  const Angles<T> angles(work);
  device::WaitForKernelBefore();
  device::Eight<T> own_value;
  if (work.used) {
    own_value =
        device::Eight<T>(work.Head(p.h + p.g + work.key_head) + work.first);
  }
  float q[kHeads][kElements];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    softmax[i].Clear();
    const int head =
        work.key_head * work.group + min(first_head + i, work.group - 1);
    angles.Rotate(work, head).ToFloats(q[i]);
#pragma unroll
    for (int e = 0; e < kElements; ++e) q[i][e] *= p.scale;
  }
  const device::Eight<T> own_key = angles.Rotate(work, p.h + work.key_head);
  // Each warp makes as many turns for all of its lanes, which exchange sums.
  for (int64_t turn = work.first_turn(); turn < work.keys.end;
       turn += work.turn()) {
    rows.AddCurrent(work, turn, own_key, own_value, first_head == 0);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const bool visible = work.Row(turn, a) < work.keys.end;
      float key[kElements], values[kElements];
      rows.keys[a].ToFloats(key);
      rows.values[a].ToFloats(values);
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        float score = 0;
#pragma unroll
        for (int e = 0; e < kElements; ++e) score += q[i][e] * key[e];
        score = SumOver(work.lanes, score);
        if (p.soft_cap != 0) score = p.soft_cap * tanhf(score / p.soft_cap);
        softmax[i].template Add<T>(visible ? score : -INFINITY, 1, values);
      }
    }
    rows.Read(work, turn + work.turn());
  }
}

// A block for each split, key head and kHeads of its query heads. While there
// are no more blocks than multiprocessors, each leaves room for one of the
// product that follows. With four heads that would spill registers.
template <typename T, int kHeads>
__global__ void __launch_bounds__(kThreads, kHeads < kMostHeads ? 2 : 1)
    DecodeAttention(const __grid_constant__ DecodeAttentionParams p) {
  device::LetNextKernelBegin();
  const Work<T> work = {p};
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;
  RunningSoftmax<kElements> softmax[kHeads];
  Attend(work, first_head, softmax);

  extern __shared__ float shared[];  // [kWarps, kHeads, D + 2]
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    JoinRows<T>(work.lanes, &softmax[i]);
    if (work.lane >= work.lanes || !work.used) continue;
    float* const to = shared + (work.warp * kHeads + i) * (p.d + 2);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      to[work.first + e] = softmax[i].values[e];
    }
    if (work.first > 0) continue;
    to[p.d] = softmax[i].most;
    to[p.d + 1] = softmax[i].sum;
  }
  __syncthreads();
  const int heads = min(kHeads, work.group - first_head);
  for (int x = threadIdx.x; x < heads * p.d; x += kThreads) {
    const int i = x / p.d, element = x % p.d;
    RunningSoftmax<1> joined;
    joined.Clear();
    Parts<kWarps> parts;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* const from = shared + (w * kHeads + i) * (p.d + 2);
      parts.mosts[w] = from[p.d];
      parts.sums[w] = from[p.d + 1];
      parts.values[w] = from[element];
    }
    parts.template AddTo<T>(&joined);
    const int head =
        work.batch * p.h + work.key_head * work.group + first_head + i;
    if (p.splits == 1) {
      WriteResult<T>(p, head, element, joined);
    } else {
      WritePartial(p, head, element, joined);
    }
  }
}

// A block for each head of each sequence.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    JoinSplits(const __grid_constant__ DecodeAttentionParams p) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  const int head = static_cast<int>(blockIdx.x);
  for (int element = threadIdx.x; element < p.d; element += blockDim.x) {
    RunningSoftmax<1> joined;
    joined.Clear();
    for (int first = 0; first < p.splits; first += kAtOnce) {
      Parts<kAtOnce> parts;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const bool is_split = first + i < p.splits;
        const float* const from =
            p.partials +
            (int64_t{is_split ? first + i : 0} * p.b * p.h + head) * (p.d + 2);
        parts.mosts[i] = is_split ? from[p.d] : -INFINITY;
        parts.sums[i] = from[p.d + 1];
        parts.values[i] = from[element];
      }
      parts.template AddTo<T>(&joined);
    }
    WriteResult<T>(p, head, element, joined);
  }
}

int HeadsPerBlock(int group) {
  int heads = 1;
  while (heads < group && heads < kMostHeads) heads *= 2;
  return heads;
}

// The shared memory of a block of which a multiprocessor has room for two.
cudaError_t HalfOfSharedMemory(size_t* bytes) {
  int device = 0, all = 0, reserved = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(
      &all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(
      &reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  *bytes = static_cast<size_t>(all / 2 - reserved);
  return error;
}

template <typename T, int kHeads>
cudaError_t Launch(const DecodeAttentionParams& p, cudaStream_t stream) {
  const int group = p.h / p.g;
  const dim3 grid(p.splits, p.b * p.g, (group + kHeads - 1) / kHeads);
  // A token took 1.3 times as long when two blocks of the product had room
  // beside a block of this kernel. Probably other multiprocessors then got
  // none, and all later products were divided as unevenly.
  size_t half = 0;
  cudaError_t error = HalfOfSharedMemory(&half);
  if (error != cudaSuccess) return error;
  const size_t shared =
      std::max(half, sizeof(float) * kWarps * kHeads * (p.d + 2));
  error = ShareMultiprocessor(DecodeAttention<T, kHeads>, shared);
  if (error != cudaSuccess) return error;
  error = LaunchEarly(DecodeAttention<T, kHeads>, grid, kThreads, shared,
                      stream, p);
  if (error != cudaSuccess || p.splits == 1) return error;
  error = ShareMultiprocessor(JoinSplits<T>, 0);
  if (error != cudaSuccess) return error;
  return LaunchEarly(JoinSplits<T>, p.b * p.h, Threads(p.d), 0, stream, p);
}

}  // namespace

cudaError_t LaunchDecodeAttention(const DecodeAttentionParams& params,
                                  FloatType type, cudaStream_t stream) {
  return WithType(type, [&]<typename T>(T) {
    switch (HeadsPerBlock(params.h / params.g)) {
      case 1:
        return Launch<T, 1>(params, stream);
      case 2:
        return Launch<T, 2>(params, stream);
      default:
        return Launch<T, kMostHeads>(params, stream);
    }
  });
}

}  // namespace tessera
