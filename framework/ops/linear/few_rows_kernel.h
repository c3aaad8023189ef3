#ifndef FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_
#define FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// y = after(norm(x) W^T) for a few rows, as in few_rows.h; all contiguous. `in`
// is a multiple of 8; x, gain and W begin at multiples of 16 bytes.
struct FewRowsParams {
  FloatType operands = FloatType::kBFloat16;  // of the product; 16 bits
  FloatType x_type =
      FloatType::kBFloat16;  // theirs; FP32 is allowed with a norm
  FloatType y_type = FloatType::kBFloat16;  // theirs or FP32
  int rows = 0;                             // at most kMostFewRows
  int64_t in = 0, out = 0;
  const void* x = nullptr;      // [rows, in]
  const float* gain = nullptr;  // [in]; null: no norm
  float eps = 0;
  const void* weight = nullptr;  // [out, in]; [2 out, in] with swiglu
  bool swiglu = false;
  const void* residual = nullptr;  // [rows, out], y's type; null: none
  void* y = nullptr;               // [rows, out]
};
// The weight must have been written before the last kernel of the stream that
// LaunchEarly() did not launch.
cudaError_t LaunchFewRows(const FewRowsParams& params, cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_FEW_ROWS_KERNEL_H_
