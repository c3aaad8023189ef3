#include "framework/precision/loss_scaler.h"

#include <ATen/ATen.h>

#include <limits>

namespace tessera {

LossScaler::LossScaler(const LossScalerOptions& options, at::Device device)
    : options_(options),
      scale_(at::empty({1}, at::device(device).dtype(at::kFloat))),
      inverse_scale_(at::empty_like(scale_)),
      steps_since_change_(at::empty({1}, at::device(device).dtype(at::kLong))),
      skipped_steps_(at::empty_like(steps_since_change_)) {
  ImportState({options.initial_scale, 0, 0});
}

void LossScaler::Update(const at::Tensor& found_nonfinite) {
  skipped_steps_.add_(found_nonfinite);
  steps_since_change_.add_(1);
  const at::Tensor grows =
      steps_since_change_.ge(options_.growth_interval_steps);
  const at::Tensor without_overflow =
      at::where(grows, scale_ * options_.growth_factor, scale_);
  scale_.copy_(at::where(found_nonfinite, scale_ * options_.backoff_factor,
                         without_overflow)
                   .clamp_(kMinScale, std::numeric_limits<float>::max()));
  steps_since_change_.masked_fill_(found_nonfinite.logical_or(grows), 0);
  at::reciprocal_out(inverse_scale_, scale_);
}

at::Tensor LossScaler::at_floor() const { return scale_.le(kMinScale); }

LossScalerState LossScaler::ExportState() const {
  return {scale_.item<float>(), steps_since_change_.item<int64_t>(),
          skipped_steps_.item<int64_t>()};
}

void LossScaler::ImportState(const LossScalerState& state) {
  scale_.fill_(state.scale);
  inverse_scale_.fill_(1 / state.scale);
  steps_since_change_.fill_(state.steps_since_change);
  skipped_steps_.fill_(state.skipped_steps);
}

}  // namespace tessera
