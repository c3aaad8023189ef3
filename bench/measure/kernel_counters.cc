#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/measure/measurement.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/observe/trace/activity_source.h"
#include "framework/observe/trace/kernel_trace.h"
#include "framework/observe/trace/step_profile.h"
#include "framework/observe/trace/trace_recorder.h"
#include "framework/observe/trace_schedule.h"
#include "trainers/plan/step_rows.h"
#include "trainers/run/session_description.h"

namespace tessera {

// Made before all that records: counters cannot be read after a trace, and do
// not see the kernels of a CUDA graph (kCountedStep).
absl::Status MeasureCounters(TrainingCell& cell,
                             nlohmann::ordered_json& figures) {
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
    ASSIGN_OR_RETURN(const Trace trace, recorder.Stop());
    const StepProfile profile =
        BuildStepProfile(trace, RowsOfStep(cell.plan()), RatesOf(cell.plan()));
    nlohmann::ordered_json kernels =
        std::move(ProfileToJson(trace, profile)["step"]["kernels"]);
    while (kernels.size() > kKernels) kernels.erase(kernels.size() - 1);
    for (nlohmann::ordered_json& kernel : kernels) {
      kernel["share_pct"] = 100 * kernel["share"].get<double>();
    }
    figures["counters"] = std::move(kernels);
  }
  return absl::OkStatus();
}

}  // namespace tessera
