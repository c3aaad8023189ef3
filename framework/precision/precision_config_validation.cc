#include "framework/precision/precision_config_validation.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// The scale is an FP32 tensor.
void CheckScale(double scale, const Violations& violations) {
  using Fp32 = std::numeric_limits<float>;
  if (!(scale > 0)) {
    violations.Add("initial_scale", absl::StrCat("must be > 0; is ", scale));
    return;
  }
  violations.Check(scale >= Fp32::min() && scale <= Fp32::max(),
                   "initial_scale",
                   absl::StrCat("must be a number of FP32, ", Fp32::min(),
                                " to ", Fp32::max(), "; is ", scale));
}

void ValidateLossScaler(const LossScalerConfig& config,
                        const Violations& violations) {
  CheckScale(config.initial_scale(), violations);
  violations.Check(
      std::isfinite(config.growth_factor()) && config.growth_factor() > 1,
      "growth_factor",
      absl::StrCat("must be > 1; is ", config.growth_factor()));
  violations.Check(
      config.backoff_factor() > 0 && config.backoff_factor() < 1,
      "backoff_factor",
      absl::StrCat("must be in (0, 1); is ", config.backoff_factor()));
  violations.Check(
      config.growth_interval_steps() >= 1, "growth_interval_steps",
      absl::StrCat("must be >= 1; is ", config.growth_interval_steps()));
}

}  // namespace

void Validate(const PrecisionConfig& config, Violations violations) {
  violations.Check(config.mode() != PrecisionConfig::UNSPECIFIED, "mode",
                   "must be FP32, TF32, BF16, FP16 or BF16_PURE");
  ValidateLossScaler(config.loss_scaler(), violations.In("loss_scaler"));
}

}  // namespace tessera
