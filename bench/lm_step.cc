// Times forward, forward + backward and the full step of one cell (size,
// context, precision, backend) of the LM and prints one JSON line, for
// bench/compare_lm_step.py to set beside PyTorch's.

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "bench/timing.h"
#include "framework/base/runtime_files.h"
#include "framework/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"
#include "trainers/program_flags.h"
#include "trainers/run/session.h"

ABSL_FLAG(std::string, size, "small", "small, medium, large, xl or 2.7B");
ABSL_FLAG(std::string, precision, "FP32", "a mode of PrecisionConfig");
ABSL_FLAG(std::string, backend, "NAIVE", "a backend of AttentionConfig");
ABSL_FLAG(int, context, 512, "tokens a sequence");
ABSL_FLAG(int, batch, 4, "sequences a step");
ABSL_FLAG(int, warmup, 3, "untimed calls before each measurement");
ABSL_FLAG(int, iterations, 10, "timed calls of each measurement");
ABSL_FLAG(std::vector<std::string>, set, {},
          "further overrides of the config, comma-separated");

namespace tessera {
namespace {

absl::StatusOr<RunConfig> CellConfig() {
  ASSIGN_OR_RETURN(const std::string path,
                   FindRuntimeFile(absl::StrCat(
                       "configs/", absl::GetFlag(FLAGS_size), "_fp32.pbtxt")));
  std::vector<std::string> sets = {
      absl::StrCat("model.context_length=", absl::GetFlag(FLAGS_context)),
      absl::StrCat("training.batch_size=", absl::GetFlag(FLAGS_batch)),
      absl::StrCat("precision.mode=", absl::GetFlag(FLAGS_precision)),
      absl::StrCat("attention.backend=", absl::GetFlag(FLAGS_backend)),
  };
  for (const std::string& set : absl::GetFlag(FLAGS_set)) sets.push_back(set);
  ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(path, sets));
  config.mutable_data()->mutable_synthetic();
  return config;
}

nlohmann::json ToJson(const Timing& timing) {
  return {{"median", timing.median_ms},
          {"min", timing.min_ms},
          {"max", timing.max_ms}};
}

absl::Status Run() {
  ASSIGN_OR_RETURN(const RunConfig config, CellConfig());
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(config, {}));
  const c10::Device device = session->plan().device.device;
  ASSIGN_OR_RETURN(const Batch batch, session->train_loader().Load(0));
  TrainStep& step = session->step();
  auto measure = [&](absl::FunctionRef<absl::Status()> fn) {
    return Measure(fn, device, absl::GetFlag(FLAGS_warmup),
                   absl::GetFlag(FLAGS_iterations));
  };
  ResetPeakMemory(device);
  ASSIGN_OR_RETURN(const Timing forward,
                   measure([&] { return step.Forward(batch); }));
  ASSIGN_OR_RETURN(const Timing forward_backward,
                   measure([&] { return step.ForwardBackward(batch); }));
  ASSIGN_OR_RETURN(const Timing full,
                   measure([&] { return step.Run(batch, 1e-4); }));
  const nlohmann::json record = {
      {"size", absl::GetFlag(FLAGS_size)},
      {"context", absl::GetFlag(FLAGS_context)},
      {"batch", absl::GetFlag(FLAGS_batch)},
      {"precision", absl::GetFlag(FLAGS_precision)},
      {"backend", session->plan().backend.backend->name()},
      {"device", session->plan().device.name},
      {"parameters", session->plan().num_parameters},
      {"forward_ms", ToJson(forward)},
      {"forward_backward_ms", ToJson(forward_backward)},
      {"step_ms", ToJson(full)},
      {"tflops", session->plan().flops_per_token *
                     session->plan().tokens_per_step() / full.median_ms * 1e-9},
      {"peak_gib", CurrentMemory(device).peak_allocated / 1073741824.0},
      {"planned_gib", session->plan().memory.report.total() / 1073741824.0},
  };
  std::cout << record.dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times one step: lm_step [--size=SIZE] [--context=TOKENS] "
                "[--precision=MODE] [--backend=NAME]",
       .version = tessera::BuildSummary()},
      tessera::Run);
}
