#ifndef FRAMEWORK_OPS_RMS_NORM_H_
#define FRAMEWORK_OPS_RMS_NORM_H_

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// y = x * r * g with r = (mean_C(x^2) + eps)^(-1/2), per row (Zhang and
// Sennrich, "Root Mean Square Layer Normalization", 2019).
//   x: [..., C], the residual's dtype
//   gain: [C], read from its master
//   returns y: [..., C], `out_dtype`
// Statistics in FP32 (FP64 for FP64 x). Saves x and r (one scalar a row).
// Backward, with x_hat = x r and s = dy * g:
//   dx = r (s - x_hat mean_C(s x_hat))
//   dg = sum over rows of dy * x_hat, into gain.grad()
at::Tensor RmsNorm(const at::Tensor& x, Parameter& gain, double eps,
                   at::ScalarType out_dtype);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_H_
