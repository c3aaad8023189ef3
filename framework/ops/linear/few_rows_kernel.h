#ifndef FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_
#define FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// y = x W^T, added in FP32 and rounded once, for contiguous x [rows, in], W
// [out, in] and y [rows, out]; `rows` is at most kMostFewRows (few_rows.h),
// `in` a multiple of 8, x and W begin at multiples of 16 bytes.
struct FewRowsParams {
  int rows = 0;
  int64_t in = 0, out = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
};
cudaError_t LaunchFewRows(const FewRowsParams& params, FloatType operands,
                          FloatType result, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_
