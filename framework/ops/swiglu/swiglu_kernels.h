#ifndef FRAMEWORK_OPS_SWIGLU_SWIGLU_KERNELS_H_
#define FRAMEWORK_OPS_SWIGLU_SWIGLU_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// SwiGLU (swiglu.h) over the rows of contiguous tensors.
struct SwiGluKernels {
  // ab: [..., 2F] to h: [..., F].
  void (*forward)(const at::Tensor& ab, const at::Tensor& h);
  // Writes d(ab), which may be ab.
  void (*backward)(const at::Tensor& ab, const at::Tensor& dh, at::Tensor d_ab);

  static const SwiGluKernels kReference;
  static const SwiGluKernels kCpu;  // FP32
  static const SwiGluKernels kCuda;
};

}  // namespace tessera

#endif  // FRAMEWORK_OPS_SWIGLU_SWIGLU_KERNELS_H_
