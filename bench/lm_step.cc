// Times a training step of a config on synthetic tokens; then its forward pass,
// and forward and backward together. Prints one line of JSON for
// bench/compare_lm_step.py, which compares the step with PyTorch's.
// "first_step_s" runs from the start of main() to the end of the first step;
// "held_gib" is what LibTorch's allocator took from the driver for the steps.

#include <cstdio>
#include <iostream>
#include <memory>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/observe/timing.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/config/config_flags.h"
#include "trainers/program_flags.h"
#include "trainers/run/session.h"

ABSL_FLAG(int, warmup, 3, "untimed calls before each measurement");
ABSL_FLAG(int, iterations, 10, "timed calls of each measurement");

namespace tessera {
namespace {

nlohmann::json ToJson(const Timing& timing) {
  return {{"median", timing.median_ms},
          {"min", timing.min_ms},
          {"max", timing.max_ms}};
}

absl::Status Run() {
  const absl::Time start = MonotonicNow();
  ASSIGN_OR_RETURN(RunConfig config, RunConfigFromFlags());
  config.mutable_data()->mutable_synthetic();
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(config, {}));
  const c10::Device device = session->plan().device.device;
  ASSIGN_OR_RETURN(const Batch batch, session->train_loader().Load(0));
  TrainStep& step = session->step();
  auto measure = [&](absl::FunctionRef<absl::Status()> fn) {
    return Measure(fn, device, absl::GetFlag(FLAGS_warmup),
                   absl::GetFlag(FLAGS_iterations));
  };
  auto run = [&] { return step.Run(batch, 1e-4); };
  ResetPeakMemory(device);
  RETURN_IF_ERROR(TimeOnceMs(run, device).status());
  const absl::Duration to_first_step = MonotonicNow() - start;
  ASSIGN_OR_RETURN(const Timing full, measure(run));
  // Read now: the CUDA graphs of the two measurements below take more memory.
  const MemoryUse memory = CurrentMemory(device);
  ASSIGN_OR_RETURN(const Timing forward,
                   measure([&] { return step.Forward(batch); }));
  ASSIGN_OR_RETURN(const Timing forward_backward,
                   measure([&] { return step.ForwardBackward(batch); }));
  const nlohmann::json record = {
      {"size", ConfigNameFromFlags()},
      {"context", config.model().context_length()},
      {"batch", config.training().batch_size()},
      {"precision", PrecisionConfig::Mode_Name(config.precision().mode())},
      {"backend", session->plan().backend.backend->name()},
      {"device", session->plan().device.name},
      {"parameters", session->plan().num_parameters},
      {"forward_ms", ToJson(forward)},
      {"forward_backward_ms", ToJson(forward_backward)},
      {"step_ms", ToJson(full)},
      {"tflops", session->plan().flops_per_token *
                     session->plan().tokens_per_step() / full.median_ms * 1e-9},
      {"first_step_s", absl::ToDoubleSeconds(to_first_step)},
      {"held_gib", memory.peak_reserved / 1073741824.0},
      {"peak_gib", memory.peak_allocated / 1073741824.0},
      {"planned_gib", session->plan().memory.report.allocated() / 1073741824.0},
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
