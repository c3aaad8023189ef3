#ifndef TRAINERS_RUN_TRAINER_H_
#define TRAINERS_RUN_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/observe/console.h"
#include "framework/observe/run_log.h"
#include "framework/observe/tensorboard.h"
#include "framework/optim/learning_rate_schedule.h"
#include "trainers/generation/sampling.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/session.h"
#include "trainers/run/stop_signal.h"

namespace tessera {

// The loop around a TrainStep and its lifecycle: resume, log, evaluate, save,
// stop. Rank 0 writes; every rank calls the same functions in the same order.
class Trainer {
 public:
  // Loads the checkpoint that `folder` resumes from or whose weights it starts
  // with. `phases` may be null.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      std::unique_ptr<Session> session, RunFolder folder,
      PhaseObserver* phases);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains up to training.steps, evaluates, saves and prints a sample.
  //   Cancelled (exit 128 + n)     one of kStopSignals: after the current step
  //                                and a checkpoint; with several ranks, which
  //                                have to agree, within about a second more
  //   FailedPrecondition           the log cannot be written: the disk is full,
  //                                or the run's folder is gone; the message
  //                                says where the weights are
  //   Aborted                      a loss or gradient that is not finite, with
  //                                its step and first bad parameter; the
  //                                weights are those before that step
  //   ResourceExhausted            out of memory, with what would help
  //   DataLoss                     a token file that another program changed,
  //                                after a checkpoint
  absl::Status Run();

  // The folder of the newest checkpoint that was written or, before that, the
  // one resumed from; empty if there is none.
  const std::string& newest_checkpoint() const { return newest_checkpoint_; }

 private:
  Trainer(std::unique_ptr<Session> session, RunFolder folder,
          PhaseObserver* phases);

  absl::Status Resume();
  absl::Status StartFrom(const Checkpoint& checkpoint);
  absl::Status OpenOutputs();
  absl::Status DoStep();
  // Logs what the first step kept for its backward pass, if that is asked for.
  absl::Status LogKeptBytes();
  // What is due after a step: log, evaluate, save.
  absl::Status AfterStep();
  absl::Status LogStep();
  // Forgets the time of the steps so far.
  void RestartTiming();
  absl::Status EvaluateNow();
  // Writes to TensorBoard and the log; on an error see SaveAfter().
  template <typename Record>
  absl::Status Write(const Record& record);
  // Nothing where this step's is there already.
  absl::Status SaveCheckpoint();
  // The writing rank's part: a checkpoint, and no more than are kept.
  absl::Status SaveInRunFolder();
  // Writes a checkpoint of this step to `directory`, on this rank only.
  absl::Status WriteCheckpoint(const std::string& directory);
  // What was trained up to here is good although the run must end because of
  // `error` (data or output that is gone), so rank 0 tries to save it. Calls no
  // collective: the other ranks may be in the next step, and learn of the
  // failure when this process ends. Returns `error` and where the weights are.
  absl::Status SaveAfter(const absl::Status& error);
  // Whether the clock, which only rank 0 asks, says that a checkpoint is due.
  bool ClockAsksToSave() const;
  // The same between two steps, out of the steps' time.
  absl::Status SaveByTheClock();
  absl::Status PrintSample();
  // Of data without a tokenizer.
  absl::Status PrintSampleOfTokens(const SamplingOptions& options);
  // The signal that came, to this rank or with several ranks to any, the same
  // on each; 0 so far. Sets save_is_due_, also the same on each.
  absl::StatusOr<int> StopSignalOfAnyRank();
  // Aborted when a step since the last check had a loss or gradients that are
  // not finite.
  absl::Status CheckFinite();
  RunDescription Describe() const;

  bool is_writer() const { return session_->plan().world.rank == 0; }
  const TrainingConfig& training() const {
    return session_->plan().config.training();
  }
  bool Due(int64_t every) const { return step_ % every == 0; }

  const std::unique_ptr<Session> session_;
  RunFolder folder_;
  PhaseObserver* const phases_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  StopSignal stop_;

  int64_t step_ = 0;        // optimizer steps done
  int64_t first_step_ = 0;  // done when this process began
  int64_t samples_ = 0;     // training sequences consumed
  int64_t saved_step_ = -1;
  absl::Time saved_at_;       // or when Run() began
  bool save_is_due_ = false;  // by the clock of rank 0
  std::string resumed_from_;  // a checkpoint's folder; empty from step 0
  std::string newest_checkpoint_;
  // What log_ says of the weights that a run at step 0 started with; null for
  // random ones.
  nlohmann::ordered_json started_from_;
  // Of StopSignalOfAnyRank(): the step that asks the others next; the last.
  int64_t next_agreement_ = 0, last_agreed_step_ = 0;
  absl::Time last_agreement_;
  // Since the last logged step, or else the first, without evaluation and
  // saving: up to timed_since_, and from then on.
  absl::Duration training_time_;
  absl::Time timed_since_;
  int64_t timed_steps_ = 0;
  absl::Time resumed_at_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAINER_H_
