#include "framework/cuda/kernel.cuh"
#include "framework/ops/rope/rope_launch.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// What a block needs to rotate one token.
template <typename T>
struct Args {
  T* x;
  const float* cos;
  const float* sin;
  const int64_t* token_positions;  // null: the token's index in its sequence
  int64_t sequence;                // S
  int64_t token_stride;            // heads * D
  int rotated_heads, head_dim;
  float sin_sign;

  __device__ int64_t Position(int64_t token) const {
    return token_positions != nullptr ? token_positions[token]
                                      : token % sequence;
  }
};

// One block per token; an item is N consecutive elements: N / 2 pairs.
template <typename T, int N>
__global__ void RopeInterleaved(const Args<T> args) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  const int64_t token = blockIdx.x;
  const int64_t angles = args.Position(token) * (args.head_dim / 2);
  const float* cos = args.cos + angles;
  const float* sin = args.sin + angles;
  T* x = args.x + token * args.token_stride;
  const int items_per_head = args.head_dim / N;
  const int items = args.rotated_heads * items_per_head;
  for (int item = threadIdx.x; item < items; item += blockDim.x) {
    const int pair = item % items_per_head * (N / 2);
    float v[N], c[N / 2], s[N / 2];
    device::Load(x + int64_t{item} * N, v);
    device::Load(cos + pair, c);
    device::Load(sin + pair, s);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float u = v[2 * i], w = v[2 * i + 1];
      v[2 * i] = u * c[i] - w * (args.sin_sign * s[i]);
      v[2 * i + 1] = u * (args.sin_sign * s[i]) + w * c[i];
    }
    device::Store(x + int64_t{item} * N, v);
  }
}

// One block per token; an item is N consecutive elements of a head's first half
// and their partners at distance D / 2.
template <typename T, int N>
__global__ void RopeHalved(const Args<T> args) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  const int64_t token = blockIdx.x;
  const int half = args.head_dim / 2;
  const int64_t angles = args.Position(token) * half;
  const float* cos = args.cos + angles;
  const float* sin = args.sin + angles;
  T* x = args.x + token * args.token_stride;
  const int items_per_head = half / N;
  const int items = args.rotated_heads * items_per_head;
  for (int item = threadIdx.x; item < items; item += blockDim.x) {
    const int head = item / items_per_head;
    const int column = item % items_per_head * N;
    T* first = x + int64_t{head} * args.head_dim + column;
    float u[N], w[N], c[N], s[N];
    device::Load(first, u);
    device::Load(first + half, w);
    device::Load(cos + column, c);
    device::Load(sin + column, s);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float rotated = u[i] * c[i] - w[i] * (args.sin_sign * s[i]);
      w[i] = u[i] * (args.sin_sign * s[i]) + w[i] * c[i];
      u[i] = rotated;
    }
    device::Store(first, u);
    device::Store(first + half, w);
  }
}

template <typename T, int N>
cudaError_t LaunchPacked(const RopeParams& p, cudaStream_t stream) {
  const Args<T> args = {.x = static_cast<T*>(p.x),
                        .cos = p.cos,
                        .sin = p.sin,
                        .token_positions = p.token_positions,
                        .sequence = p.positions,
                        .token_stride = int64_t{p.heads} * p.head_dim,
                        .rotated_heads = p.rotated_heads,
                        .head_dim = p.head_dim,
                        .sin_sign = p.inverse ? -1.0f : 1.0f};
  const int elements = p.rotated_heads * p.head_dim;
  const int blocks = static_cast<int>(p.tokens);
  if (p.halved) {
    return LaunchEarly(RopeHalved<T, N>, blocks,
                       Threads(elements / (2 * N), kThreads), 0, stream, args);
  }
  // An item is at least one pair.
  constexpr int kElements = N > 1 ? N : 2;
  return LaunchEarly(RopeInterleaved<T, kElements>, blocks,
                     Threads(elements / kElements, kThreads), 0, stream, args);
}

}  // namespace

cudaError_t LaunchRope(const RopeParams& p, cudaStream_t stream) {
  if (p.tokens == 0 || p.rotated_heads == 0) return cudaSuccess;
  return WithType(p.type, [&]<typename T>(T) {
    const int unit = p.halved ? p.head_dim / 2 : p.head_dim;
    if (unit % kPack<T> == 0 && IsAligned(p.x) && IsAligned(p.cos) &&
        IsAligned(p.sin)) {
      return LaunchPacked<T, kPack<T>>(p, stream);
    }
    return LaunchPacked<T, 1>(p, stream);
  });
}

}  // namespace tessera
