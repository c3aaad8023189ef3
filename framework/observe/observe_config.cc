#include "framework/observe/observe_config.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "framework/base/terminal.h"
#include "framework/observe/trace_schedule.h"

namespace tessera {
namespace {

// Limits of the configured peak in TFLOP/s: wider than any device, narrow
// enough that MFU prints.
constexpr double kLeastPeakTflops = 1e-3, kMostPeakTflops = 1e9;

}  // namespace

void Validate(const ObserveConfig& config, Violations violations) {
  violations.CheckAtLeast(1, config.log_every_steps(), "log_every_steps");
  violations.Check(config.progress_bar() != ObserveConfig::UNSPECIFIED,
                   "progress_bar", "must be AUTO, ON or OFF");
  const TraceConfig& trace = config.trace();
  const Violations in_trace = violations.In("trace");
  const auto at_least = [&](int64_t value, int64_t least,
                            absl::string_view field) {
    in_trace.Check(value >= least, field,
                   absl::StrCat("must be >= ", least, "; is ", value));
  };
  at_least(trace.wait(), 0, "wait");
  at_least(trace.warmup(), 0, "warmup");
  at_least(trace.active(), 0, "active");
  at_least(trace.repeat(), 0, "repeat");
  at_least(trace.max_records(), 1, "max_records");
  if (trace.kernel_counters()) {
    in_trace.Check(trace.active() > 0, "kernel_counters",
                   "is set, but active is 0; set observe.trace.active, the "
                   "number of steps to trace, too");
    in_trace.Check(
        trace.wait() >= kCountedStep, "kernel_counters",
        absl::StrCat("needs wait >= ", kCountedStep,
                     ", because kernels are counted in the second step, before "
                     "the trace; wait is ",
                     trace.wait()));
  }
  violations.Check(config.phases() || !config.block_phases(), "block_phases",
                   "is set, but phases is false; set observe.phases, too");
  violations.Check(
      !config.has_memory_snapshot_step() || config.memory_snapshot_step() >= 1,
      "memory_snapshot_step",
      absl::StrCat("must be >= 1, the first step; is ",
                   config.memory_snapshot_step()));
  violations.Check(
      // This form also rejects NaN.
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
