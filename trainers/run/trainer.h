#ifndef TRAINERS_RUN_TRAINER_H_
#define TRAINERS_RUN_TRAINER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/observe/run_observer.h"
#include "trainers/run/instruments.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/run_outputs.h"
#include "trainers/run/session.h"
#include "trainers/run/stop_signal.h"

namespace tessera {

// What observes this rank besides the console, the TensorBoard file and the run
// log. All of it outlives the trainer.
struct TrainerOptions {
  Instruments* instruments = nullptr;  // may be null
  std::vector<RunObserver*> observers;
};

// The loop around a TrainStep and its lifecycle: resume, log, evaluate, save,
// stop. Rank 0 writes; every rank calls the same functions in the same order.
class Trainer {
 public:
  // Loads the checkpoint that `folder` resumes from or whose weights it starts
  // with.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      std::unique_ptr<Session> session, RunFolder folder,
      TrainerOptions options);
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
          TrainerOptions options);

  absl::Status Resume();
  absl::Status StartFrom(const Checkpoint& checkpoint);
  absl::Status OpenOutputs();
  absl::Status Train();
  absl::Status DoStep();
  // Adds to an out-of-memory error what takes the memory and what would help.
  absl::Status Explain(const absl::Status& status) const;
  // Reports what the first step kept for its backward pass.
  absl::Status ReportKeptBytes();
  // What is due after a step: log, evaluate, save.
  absl::Status AfterStep();
  absl::Status LogStep();
  // Forgets the time of the steps so far.
  void RestartTiming();
  absl::Status EvaluateNow();
  // Nothing where this step's is there already.
  absl::Status SaveCheckpoint();
  // The writing rank's part: a checkpoint, and no more than are kept.
  absl::Status SaveInRunFolder();
  // Writes a checkpoint of this step to `directory`, on this rank only.
  absl::Status WriteCheckpoint(const std::string& directory);
  // What was trained up to here is good although the run must end because of
  // `status` (data or output that is gone), so rank 0 tries to save it. Calls
  // no collective: the other ranks may be in the next step, and learn of the
  // failure when this process ends. Returns `status` and where the weights are;
  // does nothing if it is OK.
  absl::Status SaveIfFailed(const absl::Status& status);
  // Whether the clock, which only rank 0 asks, says that a checkpoint is due.
  bool ClockAsksToSave() const;
  // The same between two steps, out of the steps' time.
  absl::Status SaveByTheClock();

  bool is_writer() const { return session_->plan().world.rank == 0; }
  const TrainingConfig& training() const {
    return session_->plan().config.training();
  }
  bool Due(int64_t every) const { return step_ % every == 0; }

  const std::unique_ptr<Session> session_;
  RunFolder folder_;
  const TrainerOptions options_;
  std::unique_ptr<RunOutputs> outputs_;  // the writing rank's, else null
  std::vector<RunObserver*> observers_;  // of outputs_, instruments, options_
  StopSignal stop_;

  int64_t step_ = 0;        // optimizer steps done
  int64_t first_step_ = 0;  // done when this process began
  int64_t samples_ = 0;     // training sequences consumed
  int64_t saved_step_ = -1;
  absl::Time saved_at_;  // or when Run() began
  RunOrigin origin_;
  std::string newest_checkpoint_;
  // Since the last logged step, or else the first, without evaluation and
  // saving: up to timed_since_, and from then on.
  absl::Duration training_time_;
  absl::Time timed_since_;
  int64_t timed_steps_ = 0;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAINER_H_
