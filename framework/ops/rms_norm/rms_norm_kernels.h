#ifndef FRAMEWORK_OPS_RMS_NORM_RMS_NORM_KERNELS_H_
#define FRAMEWORK_OPS_RMS_NORM_RMS_NORM_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/program/op.h"

namespace tessera {

// RMSNorm (rms_norm.h) over the rows of contiguous tensors.
struct RmsNormKernels {
  // An addition before the norm, add_rms_norm: both are undefined without one.
  struct Addition {
    at::Tensor delta, sum;
  };
  // x: [..., C]; gain: [C]. Writes y, of x's shape, and r, [rows], whose dtype
  // is used for all arithmetic. With an addition, writes sum = x + delta and
  // normalises that.
  void (*forward)(const at::Tensor& x, const Addition& add,
                  const at::Tensor& gain, double eps, const at::Tensor& y,
                  const at::Tensor& r);
  // The gradients after an addition; both are undefined without one. `d_sum`
  // may be undefined: nobody else reads the sum.
  struct AdditionGradient {
    at::Tensor d_sum, d_delta;
  };
  // x: what was normalised. Writes dx and the gain's gradient, except those
  // that are undefined. With an addition, adds d_sum to dx and writes the
  // result to d_delta, too; dx may be d_sum, and d_delta dy.
  void (*backward)(const at::Tensor& dy, const at::Tensor& x,
                   const at::Tensor& r, const at::Tensor& gain,
                   const GradTarget& gain_grad, const at::Tensor& dx,
                   const AdditionGradient& add);

  static const RmsNormKernels kReference;
  static const RmsNormKernels kCpu;  // FP32, no additions
  // r in FP32; x in y's dtype or FP32; C up to kLongestCudaRow.
  static const RmsNormKernels kCuda;
  static constexpr int64_t kLongestCudaRow = 16384;
};

// The gain's gradient is summed in two steps. On a CPU a partial sum takes
// kCpuRowsPerSum rows, so that the gradient does not depend on the number of
// threads. On a GPU each thread block makes one partial sum, with at most
// kSumsPerMultiprocessor blocks per multiprocessor: enough loads in flight, and
// few sums.
inline constexpr int64_t kCpuRowsPerSum = 64;
inline constexpr int64_t kSumsPerMultiprocessor = 3;

// Number of a gradient's partial sums on a GPU.
inline int64_t CudaPartialSums(int64_t rows, int multiprocessors) {
  return std::min(rows, kSumsPerMultiprocessor * multiprocessors);
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_RMS_NORM_KERNELS_H_
