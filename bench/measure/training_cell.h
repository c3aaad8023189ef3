#ifndef BENCH_MEASURE_TRAINING_CELL_H_
#define BENCH_MEASURE_TRAINING_CELL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/measure/timing.h"
#include "bench/studies/study_config.h"
#include "framework/base/phase_observer.h"
#include "framework/base/torch_status.h"
#include "framework/observe/memory/memory_recorder.h"
#include "framework/observe/memory/snapshot_writer.h"
#include "nlohmann/json.hpp"
#include "trainers/run/session.h"

namespace tessera {

// The calls that a study asks for.
inline Repetition RepetitionOf(const StudyConfig& study) {
  return {.warmup = study.warmup(),
          .iterations = study.iterations(),
          .min_iterations = study.min_iterations(),
          .time_limit = study.has_time_limit_s()
                            ? absl::Seconds(study.time_limit_s())
                            : absl::InfiniteDuration()};
}

inline bool Records(const StudyConfig& study, TrainingStudy::Record record) {
  return absl::c_linear_search(study.training().record(), record);
}

// What a measurement asks of the cell that it measures.
struct CellNeeds {
  // That no phase of a step runs beside another.
  bool phases_apart = false;
  // Recorders of every allocation, and of the allocator's history, that are
  // older than the session.
  bool every_allocation = false, snapshots = false;

  CellNeeds& operator|=(const CellNeeds& other) {
    phases_apart |= other.phases_apart;
    every_allocation |= other.every_allocation;
    snapshots |= other.snapshots;
    return *this;
  }
};

// Training steps of one config, for measurements.
class TrainingCell {
 public:
  // The cell of `study`, which must outlive it. Snapshots are written into
  // `snapshot_folder`.
  TrainingCell(const StudyConfig& study, RunConfig config,
               const CellNeeds& needs = {}, std::string snapshot_folder = "")
      : study_(study),
        config_(std::move(config)),
        needs_(needs),
        snapshot_folder_(std::move(snapshot_folder)) {}

  // Plans the run and opens its device.
  absl::StatusOr<RunPlan> Plan() const;
  // Makes recorders, session and batch. Only then the functions below may be
  // called.
  absl::Status Open(RunPlan plan);
  bool is_open() const { return session_ != nullptr; }

  const StudyConfig& study() const { return study_; }
  const RunConfig& config() const { return config_; }
  Session& session() { return *session_; }
  const RunPlan& plan() const { return session_->plan(); }
  c10::Device device() const { return plan().device.device; }
  // Whether the study records this.
  bool Records(TrainingStudy::Record record) const {
    return tessera::Records(study_, record);
  }

  absl::Status Step();
  // What the study times: TrainingStudy::call.
  absl::Status Call();
  absl::Status Forward() { return session_->step().Forward(batch_); }
  absl::Status ForwardBackward() {
    return session_->step().ForwardBackward(batch_);
  }

  Repetition repetition() const { return RepetitionOf(study_); }
  // Times calls that are collective if the cell has several ranks: each rank
  // makes as many, and a call's time is the maximum over the ranks. So several
  // ranks need a repetition() without a time limit.
  absl::StatusOr<Times> Time(absl::FunctionRef<absl::Status()> call);
  // Summary, with FIRST_STEPS also {first, second} of all calls.
  nlohmann::ordered_json FiguresOf(const Times& times) const;
  // The largest of each value over the ranks. Collective.
  absl::StatusOr<std::vector<double>> MaxOverRanks(std::vector<double> values);

  // The peaks of the steps since Open(). If the step is a CUDA graph, makes
  // sure that it was recorded: a launch allocates nothing. Meaningless after
  // Forward() and ForwardBackward(), whose graphs take more memory.
  absl::StatusOr<MemoryUse> PeakOfSteps();

  // Attaches an observer until the result goes out of scope. Graphs are
  // recorded anew each time, so that they hold its events only that long.
  auto Attach(PhaseObserver* observer) {
    const auto observe = [this](std::vector<PhaseObserver*> observers) {
      phases_.Set(std::move(observers));
      session_->step().SetNextStep(0);
    };
    observe({observer});
    // If this fails, the device has failed, and the cell with it.
    return absl::Cleanup(
        [observe] { StatusFromTorch([&] { observe({}); }).IgnoreError(); });
  }
  // Makes `call`, which observers see as step `step`.
  absl::Status Observed(int64_t step, absl::FunctionRef<absl::Status()> call) {
    const StepScope scope(&phases_, step);
    return call();
  }

  // The recorders that CellNeeds asked for. Null if it did not; a snapshot also
  // needs a GPU.
  MemoryRecorder* memory_recorder() { return memory_.get(); }
  SnapshotWriter* snapshots() { return snapshots_.get(); }
  // The step whose end is written as a snapshot.
  static constexpr int64_t kSnapshotStep = 1;
  const std::string& snapshot_folder() const { return snapshot_folder_; }

 private:
  const StudyConfig& study_;
  const RunConfig config_;
  const CellNeeds needs_;
  const std::string snapshot_folder_;
  PhaseObserverList phases_{{}};
  std::unique_ptr<MemoryRecorder> memory_;
  std::unique_ptr<SnapshotWriter> snapshots_;
  std::unique_ptr<Session> session_;
  Batch batch_;
  int64_t steps_ = 0;
};

}  // namespace tessera

#endif  // BENCH_MEASURE_TRAINING_CELL_H_
