#ifndef FRAMEWORK_PRECISION_LOSS_SCALER_H_
#define FRAMEWORK_PRECISION_LOSS_SCALER_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

struct LossScalerOptions {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval_steps = 2000;
};

// The state of a scaler in a checkpoint.
struct LossScalerState {
  double scale = 0;
  int64_t steps_since_change = 0;
  int64_t skipped_steps = 0;
};

// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018),
// with the rule of torch.amp.GradScaler:
//
//   a gradient overflowed   scale *= backoff_factor; the step is skipped
//   growth_interval_steps in a row without overflow   scale *= growth_factor
//
// The scale stays in the range from kMinScale, whose inverse is finite, to the
// largest finite number.
//
// The state is on the device and updated in place: only ExportState() makes the
// host wait, and a CUDA graph can capture Update().
class LossScaler {
 public:
  static constexpr double kMinScale = 0x1p-24;

  LossScaler(const LossScalerOptions& options, at::Device device);

  // The factor of the loss (or of the gradient that backward starts from), and
  // its inverse. FP32 [1], in stable storage.
  const at::Tensor& scale() const { return scale_; }
  const at::Tensor& inverse_scale() const { return inverse_scale_; }
  // bool [1], a new tensor: whether the scale is at its minimum, so that
  // another overflow would not reduce it.
  at::Tensor at_floor() const;
  // int64 [1]: number of steps that overflowed since the run began.
  const at::Tensor& skipped_steps() const { return skipped_steps_; }

  // Call this after the check of the step's gradients. found_nonfinite: bool
  // [1].
  void Update(const at::Tensor& found_nonfinite);

  // Waits for the device.
  LossScalerState ExportState() const;
  void ImportState(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  at::Tensor scale_, inverse_scale_;               // FP32 [1]
  at::Tensor steps_since_change_, skipped_steps_;  // int64 [1]
};

}  // namespace tessera

#endif  // FRAMEWORK_PRECISION_LOSS_SCALER_H_
