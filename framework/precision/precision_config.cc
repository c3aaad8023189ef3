#include "framework/precision/precision_config.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

void ValidateLossScaler(const LossScalerConfig& config,
                        const Violations& violations) {
  violations.CheckPositiveInFp32(config.initial_scale(), "initial_scale");
  const double growth = config.growth_factor();
  if (growth > 1) {
    violations.CheckPositiveInFp32(growth, "growth_factor");
  } else {
    violations.Add("growth_factor", absl::StrCat("must be > 1; is ", growth));
  }
  const double backoff = config.backoff_factor();
  if (backoff > 0 && backoff < 1) {
    violations.CheckPositiveInFp32(backoff, "backoff_factor");
  } else {
    violations.Add("backoff_factor",
                   absl::StrCat("must be in (0, 1); is ", backoff));
  }
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
