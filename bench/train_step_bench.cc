// Times training steps on synthetic tokens.
//
//   bazel run //bench:train_step_bench -- --benchmark_filter='small/.*/NAIVE'
//
// is a Google Benchmark: forward, forward + backward and the full step per
// model size, precision and attention backend. Without a GPU the registered
// cells are small enough for a CPU.
//
//   bazel run //bench:train_step_bench -- --json --config=configs/small.pbtxt
//
// times the step of one config, then its forward pass, and forward and backward
// together. It prints one line of JSON for bench/compare_lm_step.py, which
// compares the step with PyTorch's. "first_step_s" runs from the start of
// main() to the end of the first step; "held_gib" is what LibTorch's allocator
// took from the driver for the steps, and "in_use_gib" is everything that is in
// use on the GPU.
//
//   launch --nproc=2 --program=train_step_bench --json --config=...
//
// times the step of several ranks. Rank 0 prints the line. Times and figures of
// memory are the maximum over the ranks; "batch" and "tokens_per_s" are over
// all of them, "tflops" is of each GPU.

#include <ATen/Context.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "attention_backends/backend_table.h"
#include "bench/measure/measurement.h"
#include "bench/measure/timing.h"
#include "bench/measure/training_cell.h"
#include "benchmark/benchmark.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "framework/dist/world.h"
#include "framework/observe/format.h"
#include "nlohmann/json.hpp"
#include "trainers/build_info.h"
#include "trainers/config/config_flags.h"
#include "trainers/config/config_loader.h"
#include "trainers/program_flags.h"
#include "trainers/rank_errors.h"

ABSL_FLAG(bool, json, false,
          "time the config of --config and --set, and print a line of JSON");
ABSL_FLAG(int, warmup, 3, "with --json: untimed calls before each measurement");
ABSL_FLAG(int, iterations, 10, "with --json: timed calls of each measurement");

namespace tessera {
namespace {

// The memory of a step in GiB, the maximum over the ranks.
struct StepMemory {
  double held = 0, peak = 0, in_use = 0;
};

absl::StatusOr<StepMemory> MemoryOfStep(TrainingCell& cell,
                                        nlohmann::ordered_json& figures) {
  RETURN_IF_ERROR(MeasurePeakMemory(cell, figures));
  const nlohmann::ordered_json& memory = figures["memory"];
  ASSIGN_OR_RETURN(const std::vector<double> gib,
                   cell.MaxOverRanks({memory["reserved_gib"].get<double>(),
                                      memory["peak_gib"].get<double>(),
                                      BytesInUse(cell.device()) / kGibibyte}));
  return StepMemory{.held = gib[0], .peak = gib[1], .in_use = gib[2]};
}

nlohmann::json RecordOf(const TrainingCell& cell,
                        const nlohmann::ordered_json& figures,
                        const StepMemory& memory, double first_step_s) {
  const RunConfig& config = cell.config();
  const RunPlan& plan = cell.plan();
  return {
      {"size", ConfigNameFromFlags()},
      {"context", config.model().context_length()},
      {"batch", config.training().batch_size()},
      {"world", plan.world.world_size},
      {"precision", PrecisionConfig::Mode_Name(config.precision().mode())},
      {"backend", figures["backend"]},
      {"device", plan.device.name},
      {"parameters", plan.num_parameters},
      {"forward_ms", figures["forward_ms"]},
      {"forward_backward_ms", figures["forward_backward_ms"]},
      {"step_ms", figures["step_ms"]},
      {"step_wall_ms", figures["step_wall_ms"]},
      {"tokens_per_s", figures["tokens_per_s"]},
      {"tflops", figures["tflops"]},
      {"first_step_s", first_step_s},
      {"held_gib", memory.held},
      {"peak_gib", memory.peak},
      {"in_use_gib", memory.in_use},
      {"planned_gib", figures["memory"]["planned_gib"]},
  };
}

// Times the step of one config.
absl::Status TimeStep() {
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
  ASSIGN_OR_RETURN(
      const std::vector<double> first_step_s,
      cell.MaxOverRanks({absl::ToDoubleSeconds(MonotonicNow() - start)}));
  RETURN_IF_ERROR(MeasureStep(cell, figures));
  ASSIGN_OR_RETURN(const StepMemory memory, MemoryOfStep(cell, figures));
  RETURN_IF_ERROR(MeasureParts(cell, figures));
  if (cell.plan().world.rank == 0) {
    std::cout << RecordOf(cell, figures, memory, first_step_s[0]).dump()
              << std::endl;
  }
  return cell.session().FinishGroup();
}

// What --json asks for.
absl::Status PrintStep(const WorldInfo& world) {
  if (world.world_size > 1) {
    SetLogPrefix(absl::StrCat("[rank ", world.rank, "] "));
  }
  return ReportOncePerMachine(TimeStep(), world);
}

struct Cell {
  std::string config;     // configs/NAME.pbtxt
  std::string precision;  // a mode of PrecisionConfig
  std::string backend;
  int64_t context = 0;
  TrainingStudy::Call call = TrainingStudy::STEP;
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

absl::Status Run(const Cell& cell, benchmark::State& state) {
  ASSIGN_OR_RETURN(const RunConfig config, ConfigOf(cell));
  StudyConfig study;
  study.mutable_training()->set_call(cell.call);
  TrainingCell training(study, config);
  nlohmann::ordered_json figures;
  RETURN_IF_ERROR(MeasureSetUp(training, figures));
  const auto once = [&] { return training.Call(); };
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
  if (cell.call == TrainingStudy::STEP) {
    state.counters["TFLOP/s"] = benchmark::Counter(
        plan.flops_per_token * plan.tokens_per_step() * 1e-12, per_second);
  }
  state.counters["peak_MiB"] =
      CurrentMemory(training.device()).peak_allocated / kMebibyte;
  return absl::OkStatus();
}

void Register(const Cell& cell) {
  const std::string name = absl::StrCat(
      cell.config, "/", cell.precision, "/", cell.context, "/", cell.backend,
      "/", absl::AsciiStrToLower(TrainingStudy::Call_Name(cell.call)));
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
        for (const auto call :
             {TrainingStudy::FORWARD, TrainingStudy::FORWARD_BACKWARD,
              TrainingStudy::STEP}) {
          Register(
              {config, precision, std::string(backend->name()), context, call});
        }
      }
    }
  }
}

absl::Status Main() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  if (absl::GetFlag(FLAGS_json)) return PrintStep(world);
  if (world.world_size > 1) {
    return ReportOncePerMachine(
        absl::InvalidArgumentError(absl::StrCat(
            "the benchmarks run in one process, but this is one of ",
            world.world_size,
            "; add --json to time the step of a config on several ranks")),
        world);
  }
  benchmark::AddCustomContext("build", BuildSummary());
  RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  return tessera::RunProgram(
      argc, argv,
      {.usage = "times training steps on synthetic tokens: train_step_bench "
                "[--benchmark_filter=REGEX], or of one config: "
                "train_step_bench --json [--config=FILE]... "
                "[--set FIELD=VALUE]...",
       .version = tessera::BuildSummary()},
      tessera::Main);
}
