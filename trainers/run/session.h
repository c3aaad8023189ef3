#ifndef TRAINERS_RUN_SESSION_H_
#define TRAINERS_RUN_SESSION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "framework/base/phase_observer.h"
#include "framework/data/dataset.h"
#include "framework/dist/process_group.h"
#include "framework/optim/learning_rate_schedule.h"
#include "framework/optim/optimizer.h"
#include "framework/precision/loss_scaler.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/batch_loader.h"
#include "trainers/run/train_step.h"
#include "trainers/run/training_state.h"

namespace tessera {

struct SessionOptions {
  PhaseObserver* phases = nullptr;  // outlives the session
  ProgressSink progress;            // of preparing data; may be empty
  // ProductChoices::record of the checkpoint that the run resumes; may be null.
  nlohmann::json products;
  GroupTimeouts timeouts;  // of ConnectRanks(), if Create() calls it
};

// Meets the other ranks of `plan`. What may take long, such as verifying a
// checkpoint, comes afterwards: ranks that have met wait for each other without
// limit in ProcessGroup::Barrier(), but before only for GroupTimeouts::peer.
absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectRanks(
    const RunPlan& plan, GroupTimeouts timeouts = {});

// Opens the data of a run and checks it. `progress` may be empty.
absl::StatusOr<Dataset> OpenDataset(const RunPlan& plan,
                                    const ProgressSink& progress);

// Everything that a run trains with, made from its config: the plan, the
// process group, the data, the model, the optimizer and the step. Training,
// benches and tests all use it, so that measurements are of what training runs.
class Session {
 public:
  // Collective over the ranks of the environment.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const RunConfig& config, const SessionOptions& options);
  // Create() for an existing plan.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      RunPlan plan, const SessionOptions& options);
  // Create() for ranks that have met by ConnectRanks().
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      RunPlan plan, std::unique_ptr<ProcessGroup> group,
      const SessionOptions& options);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const RunPlan& plan() const { return plan_; }
  ProcessGroup& group() const { return *group_; }
  // The ranks that divide one state among them.
  Communicator& shards() const {
    return shards_ != nullptr ? *shards_ : *group_;
  }
  // ProcessGroup::Finish(), after which the step needs no other rank.
  absl::Status FinishGroup();
  const Dataset& data() const { return data_; }
  const BatchLoader& train_loader() const { return *train_loader_; }
  struct Validation {
    std::string name;  // "validation", or that of a further set
    const DataSource* source = nullptr;
    std::unique_ptr<BatchLoader> loader;
  };
  // What is held out, if anything is, and further sets.
  const std::vector<Validation>& validation() const { return validation_; }
  // Null if no data is held out.
  const BatchLoader* validation_loader() const {
    return data_.validation == nullptr ? nullptr : validation_[0].loader.get();
  }
  TrainStep& step() { return *step_; }
  // TrainStep::Flush(), then destroys the step, for the memory that its graphs
  // and activations take. step() must not be used after it.
  absl::Status FreeStep();
  // Another step over the same weights and optimizer, which reports to other
  // phases (may be null).
  std::unique_ptr<TrainStep> MakeStep(PhaseObserver* phases) const;
  // The learning rate of step t = 0, 1, ...
  double LearningRate(int64_t t) const {
    return learning_rates_->LearningRate(t);
  }
  LossScaler* scaler() { return scaler_.get(); }
  PhaseObserver* phases() { return phases_; }  // may be null
  TrainingState state() {
    return {parameters_.get(), optimizer_.get(), scaler_.get(), &shards()};
  }

 private:
  Session(RunPlan plan, PhaseObserver* phases)
      : plan_(std::move(plan)), phases_(phases) {}
  absl::Status OpenData(const SessionOptions& options);
  // Takes no memory of the step: it is called before the parameters are made.
  // Rank 0 chooses: ranks that chose on their own would round differently.
  absl::Status ChooseAlgorithms(const SessionOptions& options);
  absl::Status BuildStep();

  RunPlan plan_;
  PhaseObserver* const phases_;
  std::unique_ptr<ProcessGroup> group_;
  // Null unless there are several replicas of several shards.
  std::unique_ptr<Communicator> shards_, replicas_;
  Dataset data_;
  std::unique_ptr<BatchLoader> train_loader_;
  std::vector<Validation> validation_;
  std::optional<LearningRateSchedule> learning_rates_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LossScaler> scaler_;
  std::unique_ptr<TrainStep> step_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_SESSION_H_
