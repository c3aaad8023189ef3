#ifndef FRAMEWORK_OPTIM_GRADIENT_NORM_H_
#define FRAMEWORK_OPTIM_GRADIENT_NORM_H_

#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "framework/params/parameter_store.h"

namespace tessera {

// sum_i g_i^2 over a contiguous buffer of FP32, BF16 or FP16, on any device.
// Returns [1] on that device, computed in `dtype`; the host does not wait. The
// order of additions depends only on the number of elements, so equal input
// gives equal bits. To sum the shards of a gradient, call this for each and add
// the results. FP32 has kernels; other dtypes are slow.
absl::StatusOr<at::Tensor> SumOfSquares(const at::Tensor& flat,
                                        at::ScalarType dtype = at::kFloat);

// Whether each element of `x` is infinite or NaN: bool, of x's shape. Takes two
// kernels; isfinite() takes four.
at::Tensor NotFinite(const at::Tensor& x);

// What a step needs to know about its gradient, each [1] on the device.
struct GradientScale {
  at::Tensor norm;       // L2 norm of the true gradient
  at::Tensor scale;      // FP32: the optimizer's factor for the buffer
  at::Tensor nonfinite;  // bool: the norm is infinite or NaN
};

// Computes the scale from the sum of squares of all gradients. The buffer holds
// the true gradient divided by inverse_loss_scale, FP32 [1]; undefined means 1.
//   norm = sqrt(sum_of_squares) * inverse_loss_scale
//   scale = min(1, clip_norm / (norm + 1e-6)) * inverse_loss_scale
// as in torch.nn.utils.clip_grad_norm_. Without clip_norm the minimum is 1.
GradientScale MakeGradientScale(const at::Tensor& sum_of_squares,
                                std::optional<double> clip_norm,
                                const at::Tensor& inverse_loss_scale);

// The name of the first parameter whose gradient holds an infinity or NaN;
// empty if there is none. Reads the whole buffer and waits for the device.
std::string FirstNonFiniteGradient(const ParameterStore& store);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_GRADIENT_NORM_H_
