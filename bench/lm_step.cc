// Times a training step of a config on synthetic tokens; then its forward pass,
// and forward and backward together. Prints one line of JSON for
// bench/compare_lm_step.py, which compares the step with PyTorch's.
// "first_step_s" runs from the start of main() to the end of the first step;
// "held_gib" is what LibTorch's allocator took from the driver for the steps.

#include <cstdio>
#include <iostream>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/measure/measurement.h"
#include "bench/measure/training_cell.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/config/config_flags.h"
#include "trainers/program_flags.h"

ABSL_FLAG(int, warmup, 3, "untimed calls before each measurement");
ABSL_FLAG(int, iterations, 10, "timed calls of each measurement");

namespace tessera {
namespace {

absl::Status Run() {
  const absl::Time start = MonotonicNow();
  ASSIGN_OR_RETURN(RunConfig config, RunConfigFromFlags());
  config.mutable_data()->mutable_synthetic();
  StudyConfig study;
  study.set_warmup(absl::GetFlag(FLAGS_warmup));
  study.set_iterations(absl::GetFlag(FLAGS_iterations));
  study.mutable_training()->add_record(TrainingStudy::MEMORY);
  TrainingCell cell(study, config);
  nlohmann::ordered_json figures;
  RETURN_IF_ERROR(MeasureSetUp(cell, figures));
  RETURN_IF_ERROR(cell.Step());
  Synchronize(cell.device());
  const absl::Duration to_first_step = MonotonicNow() - start;
  RETURN_IF_ERROR(MeasureStep(cell, figures));
  RETURN_IF_ERROR(MeasurePeakMemory(cell, figures));
  RETURN_IF_ERROR(MeasureParts(cell, figures));
  const RunPlan& plan = cell.plan();
  const nlohmann::ordered_json& memory = figures["memory"];
  const nlohmann::json record = {
      {"size", ConfigNameFromFlags()},
      {"context", config.model().context_length()},
      {"batch", config.training().batch_size()},
      {"precision", PrecisionConfig::Mode_Name(config.precision().mode())},
      {"backend", figures["backend"]},
      {"device", plan.device.name},
      {"parameters", plan.num_parameters},
      {"forward_ms", figures["forward_ms"]},
      {"forward_backward_ms", figures["forward_backward_ms"]},
      {"step_ms", figures["step_ms"]},
      {"tflops", figures["tflops"]},
      {"first_step_s", absl::ToDoubleSeconds(to_first_step)},
      {"held_gib", memory["reserved_gib"]},
      {"peak_gib", memory["peak_gib"]},
      {"planned_gib", memory["planned_gib"]},
  };
  std::cout << record.dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times one step on synthetic tokens: lm_step "
                "[--config=FILE]... [--set FIELD=VALUE]...",
       .version = tessera::BuildSummary()},
      tessera::Run);
}
