#ifndef FRAMEWORK_CUDA_HOPPER_TENSOR_MAP_H_
#define FRAMEWORK_CUDA_HOPPER_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/cuda/head_view.h"

namespace tessera {

// A [B, heads, rows, columns] tensor for the copy engine.
struct TensorMapSpec {
  FloatType type = FloatType::kBFloat16;  // 2 bytes, or FP32
  HeadView view;
  int64_t batch = 0, heads = 0, rows = 0, columns = 0;
  // The box that one copy moves. Its columns in bytes (32, 64 or 128) are the
  // swizzle's span; FP32 boxes are not swizzled.
  int box_rows = 0, box_columns = 0;
};

// Describes `spec` to the copy engine. cudaErrorInvalidValue if the driver
// refuses it, for example for strides that are not multiples of 16 bytes.
cudaError_t MakeTensorMap(const TensorMapSpec& spec, CUtensorMap* map);

}  // namespace tessera

#endif  // FRAMEWORK_CUDA_HOPPER_TENSOR_MAP_H_
