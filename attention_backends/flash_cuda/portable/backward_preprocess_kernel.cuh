#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_PREPROCESS_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_PREPROCESS_KERNEL_CUH_

#include <cstdint>

#include "attention_backends/flash_cuda/instructions.cuh"
#include "attention_backends/flash_cuda/portable/backward_common.cuh"

namespace tessera {
namespace flash {
namespace portable {

// sum_i a_i b_i of a chunk.
template <typename T>
__device__ __forceinline__ float Dot(const uint4& a, const uint4& b) {
  const uint32_t left[] = {a.x, a.y, a.z, a.w};
  const uint32_t right[] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      sum += __uint_as_float(left[i]) * __uint_as_float(right[i]);
    } else {
      const float2 x = Unpack<T>(left[i]), y = Unpack<T>(right[i]);
      sum += x.x * y.x + x.y * y.y;
    }
  }
  return sum;
}

inline constexpr int kPreprocessThreads = 256;

// Lanes that share a row: one per chunk, rounded up to a power of two.
template <typename T, int kHeadDim>
inline constexpr int kPreprocessLanes = kHeadDim <= 8 * kChunk<T>    ? 8
                                        : kHeadDim <= 16 * kChunk<T> ? 16
                                                                     : 32;

// Fills BackwardScratch::statistics. Clears `sums` numbers of dq_sums, a
// multiple of four, while it waits for O and dO.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kPreprocessThreads)
    BackwardPreprocessKernel(const BackwardParams params,
                             const BackwardScratch scratch,
                             const int64_t sums) {
  constexpr int kLanes = kPreprocessLanes<T, kHeadDim>;
  static_assert(kHeadDim <= kLanes * kChunk<T>);
  const ForwardParams& p = params.forward;
  auto* const pieces = reinterpret_cast<float4*>(scratch.dq_sums);
  for (int64_t i =
           static_cast<int64_t>(blockIdx.x) * kPreprocessThreads + threadIdx.x;
       i < sums / 4;
       i += static_cast<int64_t>(gridDim.x) * kPreprocessThreads) {
    pieces[i] = make_float4(0, 0, 0, 0);
  }
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kPreprocessThreads / kLanes) +
      threadIdx.x / kLanes;
  if (row >= p.b * p.h * p.s) return;
  const int s = p.s, heads = p.h, d = p.d;
  const int query = row % s;
  const int64_t head_of_all = row / s;
  const int head = head_of_all % heads, batch = head_of_all / heads;
  const HeadRows<const T> o = RowsOf<const T>(p.o, batch, head, s, d);
  const HeadRows<const T> d_o = RowsOf<const T>(params.d_o, batch, head, s, d);
  const int column = threadIdx.x % kLanes * kChunk<T>;
  float sum = 0;
  if (column < d) {
    sum = Dot<T>(
        *reinterpret_cast<const uint4*>(o.data + query * o.row_stride + column),
        *reinterpret_cast<const uint4*>(d_o.data + query * d_o.row_stride +
                                        column));
  }
  // All lanes of a row return above together, but a warp's other rows may not.
  const unsigned lanes = kLanes == 32
                             ? 0xffffffff
                             : ((1u << (kLanes % 32)) - 1)
                                   << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    sum += __shfl_xor_sync(lanes, sum, lane);
  }
  if (column > 0) return;
  const float lse = p.lse[row];
  scratch.statistics[row] = {lse == -INFINITY ? -INFINITY : -lse * kLog2E, sum};
}

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_BACKWARD_PREPROCESS_KERNEL_CUH_
