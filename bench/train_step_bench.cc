// Google Benchmark of the training step: forward, forward + backward and the
// full step per model size, precision and attention backend.
//
//   bazel run //bench:train_step_bench -- --benchmark_filter='small/.*/NAIVE'
//
// Without a GPU the registered cells are small enough for a CPU.

#include <ATen/Context.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/backend_table.h"
#include "benchmark/benchmark.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/observe/timing.h"
#include "trainers/build_info.h"
#include "trainers/config/config_loader.h"
#include "trainers/run/session.h"

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

absl::StatusOr<std::unique_ptr<Session>> Open(const Cell& cell) {
  std::vector<std::string> sets = {
      absl::StrCat("model.context_length=", cell.context),
      absl::StrCat("precision.mode=", cell.precision),
      absl::StrCat("attention.backend=", cell.backend)};
  if (!at::hasCUDA()) sets.emplace_back("training.device=CPU");
  ASSIGN_OR_RETURN(
      RunConfig config,
      LoadRunConfig({absl::StrCat("configs/", cell.config, ".pbtxt")}, sets));
  config.mutable_data()->mutable_synthetic();
  return Session::Create(config, {});
}

absl::Status RunPhase(Session& session, const Batch& batch, Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return session.step().Forward(batch);
    case Phase::kForwardBackward:
      return session.step().ForwardBackward(batch);
    case Phase::kStep:
      return session.step().Run(batch, 1e-4);
  }
  return absl::InternalError("no such phase");
}

absl::Status Run(const Cell& cell, benchmark::State& state) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Open(cell));
  ASSIGN_OR_RETURN(const Batch batch, session->train_loader().Load(0));
  const c10::Device device = session->plan().device.device;
  auto once = [&] { return RunPhase(*session, batch, cell.phase); };
  RETURN_IF_ERROR(Measure(once, device, /*warmup=*/3, 1).status());
  ResetPeakMemory(device);
  for (auto _ : state) {
    ASSIGN_OR_RETURN(const Timing timing, Measure(once, device, 0, 1));
    state.SetIterationTime(timing.median_ms * 1e-3);
  }
  const RunPlan& plan = session->plan();
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["tokens/s"] =
      benchmark::Counter(plan.tokens_per_step(), per_second);
  if (cell.phase == Phase::kStep) {
    state.counters["TFLOP/s"] = benchmark::Counter(
        plan.flops_per_token * plan.tokens_per_step() * 1e-12, per_second);
  }
  state.counters["peak_MiB"] = CurrentMemory(device).peak_allocated / 1048576.0;
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
