// Google Benchmark of the training step: forward, forward + backward and the
// full step per model size, precision and attention backend.
//
//   bazel run //bench:train_step_bench -- --benchmark_filter='small/.*/NAIVE'
//
// Without a GPU the registered cells are small enough for a CPU.

#include <ATen/Context.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "bench/measure/measurement.h"
#include "bench/measure/timing.h"
#include "bench/measure/training_cell.h"
#include "benchmark/benchmark.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"

namespace tessera {
namespace {

enum class Phase { kForward, kForwardBackward, kStep };

struct Cell {
  std::string config;     // configs/NAME.pbtxt
  std::string precision;  // a mode of PrecisionConfig
  std::string backend;
  int64_t context = 0;
  Phase phase = Phase::kStep;
};

absl::StatusOr<RunConfig> ConfigOf(const Cell& cell) {
  std::vector<std::string> sets = {
      "data={synthetic {}}",
      absl::StrCat("model.context_length=", cell.context),
      absl::StrCat("precision.mode=", cell.precision),
      absl::StrCat("attention.backend=", cell.backend)};
  if (!at::hasCUDA()) sets.emplace_back("training.device=CPU");
  return LoadRunConfig({absl::StrCat("configs/", cell.config, ".pbtxt")}, sets);
}

absl::Status RunPhase(TrainingCell& cell, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return cell.Forward();
    case Phase::kForwardBackward:
      return cell.ForwardBackward();
    case Phase::kStep:
      return cell.Step();
  }
  return absl::InternalError("no such phase");
}

absl::Status Run(const Cell& cell, benchmark::State& state) {
  ASSIGN_OR_RETURN(const RunConfig config, ConfigOf(cell));
  const StudyConfig study;
  TrainingCell training(study, config);
  nlohmann::ordered_json figures;
  RETURN_IF_ERROR(MeasureSetUp(training, figures));
  const auto once = [&] { return RunPhase(training, cell.phase); };
  // The last of them records the CUDA graph, and takes its memory.
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(once());
  for (auto _ : state) {
    ASSIGN_OR_RETURN(const double ms, TimeMs(once, training.device()));
    state.SetIterationTime(ms * 1e-3);
  }
  const RunPlan& plan = training.plan();
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["tokens/s"] =
      benchmark::Counter(plan.tokens_per_step(), per_second);
  if (cell.phase == Phase::kStep) {
    state.counters["TFLOP/s"] = benchmark::Counter(
        plan.flops_per_token * plan.tokens_per_step() * 1e-12, per_second);
  }
  state.counters["peak_MiB"] =
      CurrentMemory(training.device()).peak_allocated / kMebibyte;
  return absl::OkStatus();
}

void Register(const Cell& cell) {
  constexpr const char* kNames[] = {"forward", "forward_backward", "step"};
  const std::string name =
      absl::StrCat(cell.config, "/", cell.precision, "/", cell.context, "/",
                   cell.backend, "/", kNames[static_cast<int>(cell.phase)]);
  benchmark::RegisterBenchmark(
      name.c_str(),
      [cell](benchmark::State& state) {
        const absl::Status status = Run(cell, state);
        if (!status.ok()) {
          state.SkipWithError(std::string(status.message()).c_str());
        }
      })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void RegisterAll() {
  using Models = std::vector<std::pair<std::string, std::string>>;
  const Models models =
      at::hasCUDA()
          ? Models{{"small", "FP32"}, {"small", "BF16"}, {"medium", "BF16"},
                   {"large", "BF16"}, {"xl", "BF16"},    {"2.7B", "BF16"}}
          : Models{{"tiny_cpu", "FP32"}};
  for (const auto& [config, precision] : models) {
    for (int64_t context : {int64_t{128}, int64_t{512}}) {
      for (const AttentionBackend* backend : AttentionBackends()) {
        for (Phase phase :
             {Phase::kForward, Phase::kForwardBackward, Phase::kStep}) {
          Register({config, precision, std::string(backend->name()), context,
                    phase});
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::PrepareProcess();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  tessera::LogInfo(tessera::BuildSummary());
  tessera::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
