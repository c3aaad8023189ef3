#ifndef FRAMEWORK_PARAMS_TRUNCATED_NORMAL_FILL_H_
#define FRAMEWORK_PARAMS_TRUNCATED_NORMAL_FILL_H_

#include "ATen/core/Tensor.h"
#include "framework/params/truncated_normal.h"

namespace tessera {

// Each fills a contiguous tensor with the values of `normal`, in FP32 and
// rounded once to the tensor's dtype. Element i depends only on `normal` and i.

namespace cpu {
// An FP32 tensor on the CPU, on all cores.
void FillTruncatedNormal(const TruncatedNormal& normal,
                         const at::Tensor& values);
}  // namespace cpu

namespace cuda {
// An FP32, BF16 or FP16 tensor on a GPU, in the order of LibTorch's current
// stream. Only in CUDA builds (framework/cuda/cuda_build.h).
void FillTruncatedNormal(const TruncatedNormal& normal,
                         const at::Tensor& values);
// The FP32 values in two halves (split_float.h): `high` in BF16, `low` in
// INT16.
void FillTruncatedNormal(const TruncatedNormal& normal, const at::Tensor& high,
                         const at::Tensor& low);
}  // namespace cuda

}  // namespace tessera

#endif  // FRAMEWORK_PARAMS_TRUNCATED_NORMAL_FILL_H_
