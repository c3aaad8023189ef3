#include "framework/precision/precision_config.h"

#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/precision/loss_scaler.h"

namespace tessera {
namespace {

void ValidateLossScaler(const LossScalerConfig& config,
                        const Violations& violations) {
  const double scale = config.initial_scale();
  if (scale > 0 && scale < LossScaler::kMinScale) {
    violations.Add("initial_scale",
                   absl::StrCat("must be at least ", LossScaler::kMinScale,
                                " (2^-24); is ", scale));
  } else {
    violations.CheckPositiveInFp32(scale, "initial_scale");
  }
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
  violations.CheckAtLeast(1, config.growth_interval_steps(),
                          "growth_interval_steps");
}

absl::StatusOr<PrecisionMode> ModeOf(const PrecisionConfig& config) {
  switch (config.mode()) {
    case PrecisionConfig::FP32:
      return PrecisionMode::kFp32;
    case PrecisionConfig::TF32:
      return PrecisionMode::kTf32;
    case PrecisionConfig::BF16:
      return PrecisionMode::kBf16;
    case PrecisionConfig::FP16:
      return PrecisionMode::kFp16;
    case PrecisionConfig::BF16_PURE:
      return PrecisionMode::kBf16Pure;
    case PrecisionConfig::UNSPECIFIED:
      break;
  }
  return absl::InvalidArgumentError(
      "precision.mode is UNSPECIFIED; choose FP32, TF32, BF16, FP16 or "
      "BF16_PURE");
}

}  // namespace

void Validate(const PrecisionConfig& config, Violations violations) {
  violations.Check(config.mode() != PrecisionConfig::UNSPECIFIED, "mode",
                   "must be FP32, TF32, BF16, FP16 or BF16_PURE");
  ValidateLossScaler(config.loss_scaler(), violations.In("loss_scaler"));
}

absl::StatusOr<PrecisionPolicy> CreatePrecisionPolicy(
    const PrecisionConfig& config, int micro_batches, bool cuda) {
  ASSIGN_OR_RETURN(const PrecisionMode mode, ModeOf(config));
  if (micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a step needs at least one micro-batch; it has ", micro_batches));
  }
  const bool needs_gpu =
      mode == PrecisionMode::kTf32 || mode == PrecisionMode::kFp16;
  if (needs_gpu && !cuda) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision.mode ", PrecisionModeName(mode),
        " needs a GPU's tensor cores; on a CPU use FP32, or BF16, which is "
        "slow there but rounds as on a GPU"));
  }
  return PrecisionPolicy(mode, micro_batches > 1 || config.fp32_gradients());
}

}  // namespace tessera
