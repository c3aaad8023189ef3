#include <algorithm>

#include "framework/cuda/hopper/tensor_map.h"

namespace tessera {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: programs must start without a
// driver. DriverFunction() would need Abseil, which cannot be linked into the
// kernels' shared library.
struct Driver {
  Driver() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    error = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess) {
      error = cudaErrorNotSupported;
    }
    encode = reinterpret_cast<Encode>(function);
  }

  cudaError_t error = cudaSuccess;
  Encode encode = nullptr;
};

CUtensorMapDataType DataType(FloatType type) {
  switch (type) {
    case FloatType::kFloat:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case FloatType::kHalf:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
}

CUtensorMapSwizzle Swizzle(const TensorMapSpec& spec) {
  if (spec.type == FloatType::kFloat) return CU_TENSOR_MAP_SWIZZLE_NONE;
  switch (spec.box_columns) {
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_32B;
  }
}

}  // namespace

cudaError_t MakeTensorMap(const TensorMapSpec& spec, CUtensorMap* map) {
  static const Driver driver;
  if (driver.error != cudaSuccess) return driver.error;
  const auto size = spec.type == FloatType::kFloat ? 4 : 2;
  const auto unsigned64 = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t sizes[4] = {unsigned64(spec.columns), unsigned64(spec.rows),
                               unsigned64(spec.heads), unsigned64(spec.batch)};
  const cuuint64_t strides[3] = {unsigned64(spec.view.row_stride * size),
                                 unsigned64(spec.view.head_stride * size),
                                 unsigned64(spec.view.batch_stride * size)};
  const cuuint32_t box[4] = {static_cast<cuuint32_t>(spec.box_columns),
                             static_cast<cuuint32_t>(spec.box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = driver.encode(
      map, DataType(spec.type), 4, spec.view.data, sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, Swizzle(spec),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace tessera
