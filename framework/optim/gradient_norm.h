#ifndef FRAMEWORK_OPTIM_GRADIENT_NORM_H_
#define FRAMEWORK_OPTIM_GRADIENT_NORM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/params/parameter_store.h"
#include "framework/program/schedule.h"

namespace tessera {

// The sum of squares of all gradients, in FP32. Squares are first summed over
// segments: kSegment elements of one parameter, counted from its beginning,
// fewer at its end. The sums of all segments are then added in the order of the
// buffer. So the bits do not depend on when a gradient becomes final. With
// several ranks, segments also end where the ranks' parts of the gradients do,
// whether or not state is divided, so it has the same bits, too. The host never
// waits.
class SumOfSquares {
 public:
  static constexpr int64_t kSegment = 1 << 16;

  // `flat`: the gradients of all parameters, contiguous, in FP32, BF16 or FP16;
  // if `shards` divide them, this rank's parts.
  // `parameters`: their ranges in bytes, from multiples of 16 on.
  // Empty ranges have no gradient.
  // `shards`: if ranks divide the state, this one sums the segments of its
  // parts; the sums of others are zero.
  SumOfSquares(at::Tensor flat, absl::Span<const GradientRange> parameters,
               const GradientShards& shards = {});

  // Sums each segment that begins in `range`, anew. All of its gradients must
  // be final, those after the end of `range` included.
  absl::Status SumSegments(const GradientRange& range);
  // The segments' sums, FP32, for the sum over ranks that divide the state.
  const at::Tensor& sums() const { return sums_; }
  // [1] on the device of the gradients, from the segments as last summed.
  absl::StatusOr<at::Tensor> Total() const;

 private:
  const at::Tensor flat_;
  std::vector<int64_t> begins_;  // of segments, elements
  // Int64 [segments, 2], where the gradients are: begin and number of elements,
  // which is 0 if another rank sums them.
  at::Tensor segments_;
  at::Tensor sums_;  // FP32 [segments]
};

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

// By slice of the store, whether its gradient holds an infinity or NaN in what
// this rank has of it: INT64, 0 or 1, on the store's device.
at::Tensor NonFiniteGradients(const ParameterStore& store);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_GRADIENT_NORM_H_
