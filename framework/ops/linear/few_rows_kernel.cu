#include "framework/cuda/kernel.cuh"
#include "framework/ops/linear/few_rows_kernel.h"

namespace tessera {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * device::kWarp;
constexpr int kElements = 8;  // that a lane reads at once

// Bound by reading W, of which each warp reads a row. x stays in L1.
template <typename T, typename Y, int kRows>
__global__ void __launch_bounds__(kThreads)
    FewRows(const __grid_constant__ FewRowsParams p) {
  device::LetNextKernelBegin();
  device::WaitForKernelBefore();
  const int64_t row_of_w =
      int64_t{blockIdx.x} * kWarps + threadIdx.x / device::kWarp;
  if (row_of_w >= p.out) return;
  const int lane = threadIdx.x % device::kWarp;
  const T* const weight = static_cast<const T*>(p.weight) + row_of_w * p.in;
  const T* const x = static_cast<const T*>(p.x);
  float sums[kRows] = {};
#pragma unroll 4
  for (int64_t i = lane * kElements; i < p.in; i += device::kWarp * kElements) {
    float w[kElements];
    device::Load(weight + i, w);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float values[kElements];
      device::Load(x + min(row, p.rows - 1) * p.in + i, values);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sums[row] += w[e] * values[e];
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float sum = device::WarpSum(sums[row]);
    if (lane > 0 || row >= p.rows) continue;
    static_cast<Y*>(p.y)[row * p.out + row_of_w] = device::FromFloat<Y>(sum);
  }
}

}  // namespace

cudaError_t LaunchFewRows(const FewRowsParams& params, FloatType operands,
                          FloatType result, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((params.out + kWarps - 1) / kWarps);
  return WithType(operands, [&]<typename T>(T) {
    if constexpr (sizeof(T) > 2) {
      return cudaErrorInvalidValue;
    } else {
      return WithType(result, [&]<typename Y>(Y) {
        const auto kernel = params.rows == 1   ? FewRows<T, Y, 1>
                            : params.rows == 2 ? FewRows<T, Y, 2>
                                               : FewRows<T, Y, 4>;
        return LaunchEarly(kernel, blocks, kThreads, 0, stream, params);
      });
    }
  });
}

}  // namespace tessera
