#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "bench/measure/measurement.h"
#include "bench/measure/trace_figures.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/kernel_trace.h"
#include "framework/observe/trace/step_profile.h"
#include "framework/observe/trace/trace_recorder.h"
#include "framework/observe/trace_schedule.h"
#include "trainers/plan/step_rows.h"
#include "trainers/run/session_description.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json ProfileOf(const TrainingCell& cell, Trace trace) {
  const RunPlan& plan = cell.plan();
  trace.device = plan.device.name;
  return ProfileToJson(BuildStepProfile(trace, RowsOfStep(plan), RatesOf(plan)),
                       AnalyzeIdleTime(trace),
                       CriticalPathOf(trace, BuildDependencyGraph(trace)));
}

// What a trace of `steps` times `call` says.
absl::StatusOr<Json> Traced(TrainingCell& cell, int steps,
                            absl::FunctionRef<absl::Status()> call) {
  const int64_t max_records = cell.config().observe().trace().max_records();
  TraceRecorder recorder(ActivitiesOf(cell.device(), max_records));
  const auto attached = cell.Attach(&recorder);
  RETURN_IF_ERROR(call());  // records the graph
  RETURN_IF_ERROR(recorder.Start());
  RETURN_IF_ERROR(call());  // CUPTI's own first time
  Synchronize(cell.device());
  recorder.Keep();
  for (int i = 0; i < steps; ++i) {
    RETURN_IF_ERROR(cell.Observed(i + 1, call));
  }
  ASSIGN_OR_RETURN(Trace trace, recorder.Stop());
  if (trace.dropped > 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "the trace of ", steps, " steps has ", trace.dropped,
        " kernels and calls more than observe.trace.max_records=", max_records,
        " allows; raise it in the study's `set`"));
  }
  return TraceFigures(ProfileOf(cell, std::move(trace)),
                      cell.plan().attention.d);
}

}  // namespace

// Made before all that records: counters cannot be read after a trace, and do
// not see the kernels of a CUDA graph (kCountedStep).
absl::Status MeasureCounters(TrainingCell& cell, Json& figures) {
  constexpr size_t kKernels = 10;
  if constexpr (kCudaBuild) {
    if (!cell.device().is_cuda()) return absl::OkStatus();
    for (int64_t step = 1; step < kCountedStep; ++step) {
      RETURN_IF_ERROR(cell.Step());
    }
    TraceRecorder recorder(CuptiKernelCounters());
    const auto attached = cell.Attach(&recorder);
    if (const absl::Status started = recorder.Start(); !started.ok()) {
      LogWarning(absl::StrCat("kernels are not counted: ", started.message()));
      return absl::OkStatus();
    }
    recorder.Keep();
    RETURN_IF_ERROR(cell.Observed(kCountedStep, [&] { return cell.Step(); }));
    ASSIGN_OR_RETURN(Trace trace, recorder.Stop());
    figures["counters"] =
        LongestKernels(ProfileOf(cell, std::move(trace)), kKernels);
  }
  return absl::OkStatus();
}

absl::Status MeasureKernels(TrainingCell& cell, Json& figures) {
  constexpr double kMostSteps = 3;
  const Json& step_ms = figures["step_ms"];
  const int steps = static_cast<int>(
      std::clamp(absl::ToDoubleMilliseconds(cell.repetition().time_limit) /
                     step_ms["median"].get<double>(),
                 1.0, kMostSteps));
  ASSIGN_OR_RETURN(Json kernels,
                   Traced(cell, steps, [&] { return cell.Step(); }));
  if (kernels["steps"].get<int>() > 1) {
    kernels["off_pct"] =
        100 *
        (kernels["wall_ms"].get<double>() / step_ms["mean"].get<double>() - 1);
  }
  figures["kernels"] = std::move(kernels);
  if (!cell.Records(TrainingStudy::PARTS)) return absl::OkStatus();
  ASSIGN_OR_RETURN(figures["forward_kernels"],
                   Traced(cell, steps, [&] { return cell.Forward(); }));
  return absl::OkStatus();
}

}  // namespace tessera
