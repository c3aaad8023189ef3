#include "framework/observe/trace/kernel_trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/observe/trace/chrome_trace.h"
#include "framework/observe/trace/critical_path.h"
#include "framework/observe/trace/dependency_graph.h"
#include "framework/observe/trace/idle_time.h"
#include "framework/observe/trace/step_profile_format.h"

namespace tessera {
namespace {

using Action = TraceSchedule::Action;

}  // namespace

void KernelTrace::BeginStep(int64_t step) {
  const Action action = options_.schedule.ActionOf(n_++);
  if (action == Action::kOff || !status_.ok()) return;
  if (!recording_) {
    status_ = recorder_.Start();
    recording_ = status_.ok();
    first_step_ = 0;
    if (!recording_) return;
  }
  ++traced_steps_;
  if (action != Action::kRecord) return;
  if (first_step_ == 0) {
    first_step_ = step;
    recorder_.Keep();
  }
  last_step_ = step;
  recorder_.BeginStep(step);
}

void KernelTrace::EndStep() {
  recorder_.EndStep();
  due_ = recording_ && options_.schedule.EndsWindow(n_ - 1);
}

absl::Status KernelTrace::AddTo(StepRecord* record) {
  record->traced_steps = std::exchange(traced_steps_, 0);
  return absl::OkStatus();
}

absl::Status KernelTrace::Collect() {
  RETURN_IF_ERROR(status_);
  due_ = recording_ = false;
  ASSIGN_OR_RETURN(Trace trace, recorder_.Stop());
  trace.rank = options_.rank;
  trace.world_size = options_.world_size;
  trace.device = options_.device;
  const std::string folder =
      absl::StrCat(options_.folder, "/steps_", first_step_, "-", last_step_);
  RETURN_IF_ERROR(MakeDirectories(folder));
  if (trace.dropped > 0) {
    LogWarning(absl::StrCat(
        "the trace of steps ", first_step_, " to ", last_step_, " lacks ",
        trace.dropped,
        " kernels and calls, and its sums are too small; lower "
        "observe.trace.active or raise observe.trace.max_records"));
  }
  if (options_.rank > 0) {
    return WriteChromeTrace(
        trace, absl::StrCat(folder, "/trace_rank", options_.rank, ".json.gz"));
  }
  RETURN_IF_ERROR(WriteChromeTrace(trace, folder + "/trace.json.gz"));
  nlohmann::ordered_json profile = {{"device", trace.device}};
  profile.update(ProfileToJson(trace, options_.rows, options_.rates));
  RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/profile.json", profile.dump(1) + "\n"));
  const IdleTimeReport idle = AnalyzeIdleTime(trace);
  const DependencyGraph graph = BuildDependencyGraph(trace);
  RETURN_IF_ERROR(WriteFileAtomically(
      folder + "/profile.txt",
      absl::StrCat(FormatStepProfile(
                       BuildStepProfile(trace, options_.rows, options_.rates)),
                   "\n", FormatIdleTime(idle), "\n",
                   FormatCriticalPath(CriticalPathOf(trace, graph)))));
  LogInfo(absl::StrCat("traced steps ", first_step_, " to ", last_step_, ": ",
                       BoundSentence(idle.device), "; see ", folder,
                       "/profile.txt"));
  return absl::OkStatus();
}

nlohmann::ordered_json ProfileToJson(const Trace& trace,
                                     const std::vector<StepRow>& rows,
                                     const DeviceRates& rates) {
  const IdleTimeReport idle = AnalyzeIdleTime(trace);
  const DependencyGraph graph = BuildDependencyGraph(trace);
  return {{"step", StepProfileToJson(BuildStepProfile(trace, rows, rates))},
          {"idle", IdleTimeToJson(idle)},
          {"critical_path", CriticalPathToJson(CriticalPathOf(trace, graph))}};
}

}  // namespace tessera
