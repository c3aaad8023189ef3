#include "bench/measure/training_cell.h"

#include <limits>

#include "framework/base/status_macros.h"
#include "framework/cuda/cuda_build.h"
#include "framework/cuda/device.h"

namespace tessera {

absl::StatusOr<RunPlan> TrainingCell::Plan() const {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  RunConfig config = config_;
  if (needs_.phases_apart) KeepPhasesApart(config.mutable_execution());
  return PlanRun(config, world);
}

absl::Status TrainingCell::Open(RunPlan plan) {
  if (needs_.every_allocation) {
    memory_ = CreateMemoryRecorder(
        plan.device.device, {.most_largest = std::numeric_limits<size_t>::max(),
                             .every_timeline = true});
  }
  if constexpr (kCudaBuild) {
    if (needs_.snapshots && plan.device.is_cuda()) {
      snapshots_ =
          CreateSnapshotWriter({.history = true, .at_step = kSnapshotStep});
    }
  }
  ASSIGN_OR_RETURN(session_,
                   Session::Create(std::move(plan), {.phases = &phases_}));
  ASSIGN_OR_RETURN(batch_, session_->train_loader().Load(0));
  ResetPeakMemory(device());
  return absl::OkStatus();
}

absl::Status TrainingCell::Step() {
  ++steps_;
  return session_->step().Run(batch_, 1e-4);
}

absl::Status TrainingCell::Call() {
  switch (study_.training().call()) {
    case TrainingStudy::FORWARD:
      return Forward();
    case TrainingStudy::FORWARD_BACKWARD:
      return ForwardBackward();
    default:
      return Step();
  }
}

absl::StatusOr<Times> TrainingCell::Time(
    absl::FunctionRef<absl::Status()> call) {
  ASSIGN_OR_RETURN(Times times, TimeCalls(call, device(), repetition()));
  ASSIGN_OR_RETURN(times.ms, MaxOverRanks(std::move(times.ms)));
  ASSIGN_OR_RETURN(const std::vector<double> wall_ms,
                   MaxOverRanks({times.wall_ms}));
  times.wall_ms = wall_ms[0];
  return times;
}

absl::StatusOr<std::vector<double>> TrainingCell::MaxOverRanks(
    std::vector<double> values) {
  return tessera::MaxOverRanks(std::move(values), &session_->group(), device());
}

nlohmann::ordered_json TrainingCell::FiguresOf(const Times& times) const {
  nlohmann::ordered_json figures = ToJson(Summarize(times.ms));
  if (Records(TrainingStudy::FIRST_STEPS)) {
    std::vector<double> ms = times.warmup_ms;
    ms.insert(ms.end(), times.ms.begin(), times.ms.end());
    figures["first"] = ms[0];
    if (ms.size() > 1) figures["second"] = ms[1];
  }
  return figures;
}

absl::StatusOr<MemoryUse> TrainingCell::PeakOfSteps() {
  constexpr int64_t kRecordedBy = 3;  // TrainStep::Launch()
  while (steps_ < (plan().step->graph ? kRecordedBy : 1)) {
    RETURN_IF_ERROR(Step());
  }
  Synchronize(device());
  return CurrentMemory(device());
}

}  // namespace tessera
