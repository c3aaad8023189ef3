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

// What a checkpoint keeps of a scaler.
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
// The scale never falls below kMinScale, so that its inverse stays finite, and
// never grows to infinity.
//
// All state lives on the device in tensors that are updated in place: no call
// but ExportState() makes the host wait, and a CUDA graph captures Update().
class LossScaler {
 public:
  static constexpr double kMinScale = 0x1p-24;

  LossScaler(const LossScalerOptions& options, at::Device device);

  // FP32 [1]: what the loss, or the gradient that backward starts from, is
  // multiplied by, and what undoes it. Stable storage.
  const at::Tensor& scale() const { return scale_; }
  const at::Tensor& inverse_scale() const { return inverse_scale_; }
  // bool [1], new: whether the scale is as small as it gets, so that another
  // overflow would not make it smaller.
  at::Tensor at_floor() const;
  // int64 [1]: steps that overflowed since the run began.
  const at::Tensor& skipped_steps() const { return skipped_steps_; }

  // After the step's gradients were checked. found_nonfinite: bool [1].
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
