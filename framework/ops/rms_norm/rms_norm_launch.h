#ifndef FRAMEWORK_OPS_RMS_NORM_RMS_NORM_LAUNCH_H_
#define FRAMEWORK_OPS_RMS_NORM_RMS_NORM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

struct RmsNormParams {
  // Types of x and dx, and of y and dy. Equal, or x_type is kFloat.
  FloatType x_type = FloatType::kFloat, y_type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t width = 0;  // C
  float eps = 0;
  const void* x = nullptr;  // [rows, C]
  // [rows, C], of y's and x's type. If set, forward writes sum = x + delta and
  // normalises that; backward gets the sum as x.
  const void* delta = nullptr;
  void* sum = nullptr;
  const float* gain = nullptr;  // [C]
  void* y = nullptr;            // [rows, C]; forward writes
  float* r = nullptr;           // [rows]; forward writes, backward reads
  const void* dy = nullptr;     // [rows, C]
  void* dx = nullptr;           // [rows, C]; backward writes
  // [rows, C], of x's and y's type. If set, backward adds d_sum to dx, and
  // writes dx to d_delta, too.
  const void* d_sum = nullptr;
  void* d_delta = nullptr;
  // [row_groups, C]; backward writes the sums of dy * x_hat over rows g, g +
  // row_groups, ... RmsNormGainGradient() adds them to the gain's gradient.
  float* partial_dgain = nullptr;
  int row_groups = 0;
};
// The longest row that the registers of a block hold, 32 numbers a thread. Both
// functions return cudaErrorInvalidValue for a longer one.
inline constexpr int64_t kMaxRmsNormWidth = 16384;
cudaError_t LaunchRmsNormForward(const RmsNormParams& params,
                                 cudaStream_t stream);
cudaError_t LaunchRmsNormBackward(const RmsNormParams& params,
                                  cudaStream_t stream);

struct ColumnSumsParams {
  int rows = 0;
  int64_t width = 0;
  const float* partial = nullptr;  // [rows, width]
  FloatType type = FloatType::kFloat;
  bool accumulate = false;  // += instead of =
  void* sums = nullptr;     // [width]
};
// Adds in an order that only depends on `rows`.
cudaError_t LaunchColumnSums(const ColumnSumsParams& params,
                             cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_RMS_NORM_LAUNCH_H_
