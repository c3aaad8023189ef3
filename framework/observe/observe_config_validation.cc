#include "framework/observe/observe_config_validation.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera {

void Validate(const ObserveConfig& config, Violations violations) {
  violations.Check(config.log_every_steps() >= 1, "log_every_steps",
                   absl::StrCat("must be >= 1; is ", config.log_every_steps()));
  violations.Check(config.progress_bar() != ObserveConfig::UNSPECIFIED,
                   "progress_bar", "must be AUTO, ON or OFF");
  violations.Check(
      !config.has_peak_tflops() ||
          (std::isfinite(config.peak_tflops()) && config.peak_tflops() > 0),
      "peak_tflops",
      absl::StrCat("must be finite and > 0; is ", config.peak_tflops(),
                   "; remove the field to use the GPU's listed peak"));
}

}  // namespace tessera
