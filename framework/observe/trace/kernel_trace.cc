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

// Why kernels are not counted, and what to change.
std::string NotCounted(const absl::Status& status) {
  return absl::StrCat(
      status.message(),
      absl::IsPermissionDenied(status)
          ? "; this user may not read the GPU's counters: load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0, or run with the "
            "capability SYS_ADMIN (docker run --cap-add=SYS_ADMIN)"
          : "");
}

// Whether only rank 0's machine has the run's folder, which machines need not
// share; rank 0 finds out if it has been removed.
bool IsElsewhere(const KernelTraceOptions& options) {
  const std::string run = DirectoryOf(options.folder);
  if (options.rank == 0 || options.simulated || FileExists(run)) return false;
  LogWarning(absl::StrCat(
      "this rank writes no trace: its machine has no folder ", run,
      "; for the traces of all ranks, let the machines share the run's folder "
      "(--out)"));
  return true;
}

}  // namespace

KernelTrace::KernelTrace(KernelTraceOptions options,
                         std::unique_ptr<ActivitySource> source,
                         std::unique_ptr<ActivitySource> counters)
    : options_(std::move(options)),
      recorder_(std::move(source)),
      counter_(counters == nullptr
                   ? nullptr
                   : std::make_unique<TraceRecorder>(std::move(counters))) {}

void KernelTrace::BeginStep(int64_t step) noexcept {
  const Action action = options_.schedule.ActionOf(n_++);
  if (counter_ != nullptr && n_ == kCountedStep) BeginCounting(step);
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

void KernelTrace::BeginCounting(int64_t step) {
  const absl::Status started = counter_->Start();
  if (!started.ok()) return GiveUpCounting(started);
  ++traced_steps_;
  counting_ = true;
  counted_.counted_step = step;
  counter_->Keep();
  counter_->BeginStep(step);
}

void KernelTrace::EndCounting() {
  counting_ = false;
  const int64_t step = std::exchange(counted_.counted_step, 0);
  const absl::StatusOr<Trace> trace = counter_->Stop();
  if (!trace.ok()) return GiveUpCounting(trace.status());
  counter_.reset();
  counted_ = BuildStepProfile(*trace, options_.rows);
  counted_.counted_step = step;
}

void KernelTrace::GiveUpCounting(const absl::Status& why) {
  counter_.reset();
  counted_.not_counted = NotCounted(why);
  LogWarning(absl::StrCat("kernels are not counted: ", counted_.not_counted));
}

void KernelTrace::EndStep() noexcept {
  current().EndStep();
  if (counting_) EndCounting();
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
  if (IsElsewhere(options_)) return absl::OkStatus();
  trace.rank = options_.rank;
  trace.world_size = options_.world_size;
  trace.device = options_.device;
  const std::string folder =
      absl::StrCat(options_.folder, "/steps_", first_step_, "-", last_step_);
  // Neither creates a run's folder anew that has been removed.
  RETURN_IF_ERROR(MakeDirectory(options_.folder));
  RETURN_IF_ERROR(MakeDirectory(folder));
  if (trace.dropped > 0) {
    LogWarning(absl::StrCat(
        "the trace of steps ", first_step_, " to ", last_step_, " lacks ",
        trace.dropped,
        " kernels and calls, and its sums are too small; lower "
        "observe.trace.active or raise observe.trace.max_records"));
  }
  if (options_.rank > 0 && !options_.simulated) {
    return WriteChromeTrace(
        trace, absl::StrCat(folder, "/trace_rank", options_.rank, ".json.gz"));
  }
  RETURN_IF_ERROR(WriteChromeTrace(trace, folder + "/trace.json.gz"));
  StepProfile profile = BuildStepProfile(trace, options_.rows, options_.rates);
  AddCounters(counted_, &profile);
  nlohmann::ordered_json json = {{"device", trace.device}};
  const IdleTimeReport idle = AnalyzeIdleTime(trace);
  const CriticalPath path = CriticalPathOf(trace, BuildDependencyGraph(trace));
  json.update(ProfileToJson(profile, idle, path));
  RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/profile.json", json.dump(1) + "\n"));
  RETURN_IF_ERROR(WriteFileAtomically(
      folder + "/profile.txt",
      absl::StrCat(FormatStepProfile(profile), "\n", FormatIdleTime(idle), "\n",
                   FormatCriticalPath(path))));
  LogInfo(absl::StrCat("traced steps ", first_step_, " to ", last_step_, ": ",
                       BoundSentence(idle.device), "; see ", folder,
                       "/profile.txt"));
  return absl::OkStatus();
}

nlohmann::ordered_json ProfileToJson(const StepProfile& profile,
                                     const IdleTimeReport& idle,
                                     const CriticalPath& path) {
  return {{"step", StepProfileToJson(profile)},
          {"idle", IdleTimeToJson(idle)},
          {"critical_path", CriticalPathToJson(path)}};
}

}  // namespace tessera
