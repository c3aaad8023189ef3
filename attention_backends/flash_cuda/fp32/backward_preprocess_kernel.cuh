#ifndef ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_PREPROCESS_KERNEL_CUH_
#define ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_PREPROCESS_KERNEL_CUH_

#include <cmath>
#include <cstdint>

#include "attention_backends/flash_cuda/flash_params.h"
#include "attention_backends/flash_cuda/fp32/backward_common.cuh"
#include "attention_backends/flash_cuda/fp32/tile.cuh"
#include "attention_backends/flash_cuda/fp32/tile_sizes.h"

namespace tessera {
namespace flash {
namespace fp32 {

inline constexpr int kPreprocessThreads = 256;
// Lanes that share a row; they read 128 bytes of it at a time.
inline constexpr int kPreprocessLanes = 8;
inline constexpr int kPreprocessRows = kPreprocessThreads / kPreprocessLanes;

// Writes every query's statistics and, with kAddsDq, clears dQ.
template <bool kAddsDq>
__global__ void __launch_bounds__(kPreprocessThreads)
    BackwardPreprocessKernel(const BackwardParams params,
                             RowStatistics* statistics) {
  const ForwardParams& p = params.forward;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kPreprocessRows +
                      threadIdx.x / kPreprocessLanes;
  if (row >= p.b * p.h * p.s) return;
  const int s = p.s, heads = p.h, d = p.d;
  const int query = row % s;
  const int64_t head_of_all = row / s;
  const int head = head_of_all % heads, batch = head_of_all / heads;
  const auto of = [&](const HeadView& view) {
    const HeadRows<float> rows = RowsOf<float>(view, batch, head, s, d);
    return reinterpret_cast<float4*>(rows.data + query * rows.row_stride);
  };
  const float4 *const o = of(p.o), *const d_o = of(params.d_o);
  float4* const dq = of(params.dq);
  const int lane = threadIdx.x % kPreprocessLanes;
  float sum = 0;
  for (int chunk = lane; chunk < d / kChunk; chunk += kPreprocessLanes) {
    const float4 a = o[chunk], b = d_o[chunk];
    sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    if constexpr (kAddsDq) dq[chunk] = make_float4(0, 0, 0, 0);
  }
  // All lanes of a row return above together, but a warp's other rows may not.
  const unsigned lanes = 0xffu
                         << (Lane() / kPreprocessLanes * kPreprocessLanes);
#pragma unroll
  for (int bit = kPreprocessLanes / 2; bit > 0; bit /= 2) {
    sum += __shfl_xor_sync(lanes, sum, bit);
  }
  if (lane > 0) return;
  const float lse = p.lse[row];
  statistics[row] = {lse == -INFINITY ? -INFINITY : -lse, sum};
}

}  // namespace fp32
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_FP32_BACKWARD_PREPROCESS_KERNEL_CUH_
