#include <cstdint>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "bench/measure/allocation_figures.h"
#include "bench/measure/measurement.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/observe/memory_record_json.h"
#include "trainers/run/instruments.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// What the device's memory holds in `call`, as if it were a step.
absl::StatusOr<MemoryRecord> Recorded(TrainingCell& cell,
                                      absl::FunctionRef<absl::Status()> call) {
  MemoryRecorder& recorder = *cell.memory_recorder();
  const auto attached = cell.Attach(recorder.phases());
  RETURN_IF_ERROR(cell.Observed(1, call));
  StepRecord record;
  RETURN_IF_ERROR(recorder.AddTo(&record));
  return *std::move(record.memory);
}

struct Passes {
  std::optional<MemoryRecord> forward;  // with PARTS
  MemoryRecord step;
};
absl::StatusOr<Passes> RecordedPasses(TrainingCell& cell) {
  NameBuffers(cell.session(), cell.memory_recorder());
  Passes passes;
  if (cell.Records(TrainingStudy::PARTS)) {
    ASSIGN_OR_RETURN(passes.forward,
                     Recorded(cell, [&] { return cell.Forward(); }));
  }
  ASSIGN_OR_RETURN(passes.step, Recorded(cell, [&] { return cell.Step(); }));
  return passes;
}

}  // namespace

absl::Status MeasureAllocations(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(const Passes passes, RecordedPasses(cell));
  const RunPlan& plan = cell.plan();
  const auto moment_bytes = static_cast<int64_t>(
      cell.session().state().optimizer->exp_avg().nbytes());
  if (passes.forward.has_value()) {
    figures["forward_allocations"] =
        AllocationFigures(*passes.forward, plan, moment_bytes);
  }
  Json& allocations = figures["allocations"];
  allocations = AllocationFigures(passes.step, plan, moment_bytes);
  allocations["saved"] = SavedFigures(passes.step, plan);
  allocations["residual"] = ResidualFigures(passes.step, plan);
  return absl::OkStatus();
}

absl::Status MeasureTimelines(TrainingCell& cell, Json& figures) {
  ASSIGN_OR_RETURN(const Passes passes, RecordedPasses(cell));
  Json& timelines = figures["timelines"];
  if (passes.forward.has_value()) {
    timelines["a forward pass"] = ToJson(passes.forward->timeline);
  }
  timelines["a step"] = ToJson(passes.step.timeline);
  return absl::OkStatus();
}

absl::Status WriteSnapshot(TrainingCell& cell, Json& /*figures*/) {
  SnapshotWriter* const snapshots = cell.snapshots();
  if (snapshots == nullptr) return absl::OkStatus();
  constexpr int64_t kStep = TrainingCell::kSnapshotStep;
  const auto attached = cell.Attach(snapshots->phases());
  RETURN_IF_ERROR(cell.Observed(kStep, [&] { return cell.Step(); }));
  RETURN_IF_ERROR(MakeDirectories(cell.snapshot_folder()));
  RETURN_IF_ERROR(
      snapshots->OnTrainStart({.run_folder = cell.snapshot_folder()}));
  return snapshots->OnStepEnd(kStep);
}

}  // namespace tessera
