#include "framework/observe/observe_config.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "framework/base/terminal.h"

namespace tessera {
namespace {

// Limits of a device's peak in TFLOP/s: wider than any device, narrow enough
// that MFU stays a printable number.
constexpr double kLeastPeakTflops = 1e-3, kMostPeakTflops = 1e9;

}  // namespace

void Validate(const ObserveConfig& config, Violations violations) {
  violations.Check(config.log_every_steps() >= 1, "log_every_steps",
                   absl::StrCat("must be >= 1; is ", config.log_every_steps()));
  violations.Check(config.progress_bar() != ObserveConfig::UNSPECIFIED,
                   "progress_bar", "must be AUTO, ON or OFF");
  violations.Check(config.phases() || !config.block_phases(), "block_phases",
                   "is set, but phases is false; set observe.phases, too");
  violations.Check(
      !config.has_memory_snapshot_step() || config.memory_snapshot_step() >= 1,
      "memory_snapshot_step",
      absl::StrCat("must be >= 1, the first step; is ",
                   config.memory_snapshot_step()));
  violations.Check(
      // Written so that NaN fails too.
      !config.has_peak_tflops() || (config.peak_tflops() >= kLeastPeakTflops &&
                                    config.peak_tflops() <= kMostPeakTflops),
      "peak_tflops",
      absl::StrCat("must be in [0.001, 1e9] TFLOP/s; is ", config.peak_tflops(),
                   "; remove the field to use the GPU's listed peak"));
}

bool WantsProgressBar(ObserveConfig::ProgressBar setting) {
  if (setting == ObserveConfig::AUTO) return CanRedraw(STDERR_FILENO);
  return setting == ObserveConfig::ON;
}

}  // namespace tessera
