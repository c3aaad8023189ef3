#include "framework/precision/precision_config_validation.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

void ValidateLossScaler(const LossScalerConfig& config,
                        const Violations& violations) {
  violations.CheckPositiveInFp32(config.initial_scale(), "initial_scale");
  violations.CheckPositiveInFp32(config.growth_factor(), "growth_factor");
  violations.Check(config.growth_factor() > 1, "growth_factor",
                   absl::StrCat("must be > 1; is ", config.growth_factor()));
  violations.CheckPositiveInFp32(config.backoff_factor(), "backoff_factor");
  violations.Check(config.backoff_factor() < 1, "backoff_factor",
                   absl::StrCat("must be < 1; is ", config.backoff_factor()));
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
