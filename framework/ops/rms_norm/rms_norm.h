#ifndef FRAMEWORK_OPS_RMS_NORM_RMS_NORM_H_
#define FRAMEWORK_OPS_RMS_NORM_RMS_NORM_H_

#include <optional>

#include "framework/program/program.h"

namespace tessera {

// y = x * r * g with r = (mean_C(x^2) + eps)^(-1/2), per row (Zhang and
// Sennrich, "Root Mean Square Layer Normalization", 2019).
//   x: [..., C], the residual's dtype
//   gain: [C], read from its master
//   returns y: [..., C], dtype of OpClass::kActivation
// Statistics have the dtype of OpClass::kNormStatistics. Backward reads x, the
// gain and r (a scalar per row); with x_hat = x r and s = dy * g:
//   dx = r (s - x_hat mean_C(s x_hat))
//   dg = sum over rows of dy * x_hat
Value RmsNorm(ProgramBuilder& b, Value x, Weight gain, double eps);

// eps of `op`; nullopt if it is not this norm.
std::optional<double> RmsNormEps(const Op& op);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_RMS_NORM_RMS_NORM_H_
