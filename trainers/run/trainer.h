#ifndef TRAINERS_RUN_TRAINER_H_
#define TRAINERS_RUN_TRAINER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "framework/checkpoint/durable_file.h"
#include "framework/observe/run_observer.h"
#include "trainers/run/batch_prefetcher.h"
#include "trainers/run/checkpoint_saver.h"
#include "trainers/run/instruments.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/run_outputs.h"
#include "trainers/run/session.h"
#include "trainers/run/stop_signal.h"

namespace tessera {

// Observers of this rank in addition to the console, TensorBoard and run log.
// All outlive the trainer.
struct TrainerOptions {
  Instruments* instruments = nullptr;  // may be null
  std::vector<RunObserver*> observers;
  // For checkpoints; only tests set these.
  WritePointHook write_point;
  uint64_t max_file_bytes = kMaxTensorFileBytes;
};

// The loop around a TrainStep and the lifecycle of a run: resume, log,
// evaluate, save, stop. Rank 0 writes, except that several ranks may share the
// tensors of checkpoints; all ranks call the same functions in the same order.
class Trainer {
 public:
  // Loads the checkpoint in `folder` to resume from or to take weights from, on
  // which the ranks agree (checkpoint_agreement.h).
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      std::unique_ptr<Session> session, RunFolder folder,
      TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains up to training.steps, evaluates, saves and prints a sample.
  //   Cancelled (exit 128 + n)     one of kStopSignals arrived: stops after the
  //                                current step and a checkpoint; several ranks
  //                                need up to about a second to agree
  //   FailedPrecondition           the log cannot be written: the disk is full,
  //                                or the run's folder is gone; the message
  //                                says where the weights are
  //   Aborted                      a loss or gradient is not finite; names the
  //                                step and the first bad parameter; the
  //                                weights are those before that step
  //   ResourceExhausted            out of memory; says what would help
  //   Internal                     among others, the GPU failed; says in which
  //                                step, and how to find the op
  //   DataLoss                     another program changed a token file; there
  //                                is a checkpoint of the last step if rank 0
  //                                notices it and holds the whole state
  absl::Status Run();

  // The folder of the newest checkpoint that was written (on a rank that does
  // not write the log: that this rank has done its part of) or, before that,
  // the one resumed from; empty if there is none.
  const std::string& newest_checkpoint() const { return newest_checkpoint_; }

 private:
  Trainer(std::unique_ptr<Session> session, RunFolder folder,
          TrainerOptions options);

  absl::Status Resume();
  // The checkpoints that were skipped for an older one, on the writing rank.
  absl::Status NoteDamagedCheckpoints();
  // Of what was asked for in steps that this process does not do.
  void WarnOfMissedSteps() const;
  absl::Status StartFrom(const Checkpoint& checkpoint);
  absl::Status OpenOutputs();
  absl::Status Train();
  absl::Status DoStep();
  // Adds to an out-of-memory error what takes the memory and what would help,
  // and to a failure of the GPU the step and how to find the op.
  absl::Status Explain(const absl::Status& status) const;
  // Reports the bytes that the first step kept for its backward pass.
  absl::Status ReportKeptBytes();
  // Does what is due after a step: log, evaluate, save.
  absl::Status AfterStep();
  absl::Status LogStep();
  bool InstrumentIsDue() const;
  absl::Status CollectFromInstruments();
  // Restarts the measurement of step times.
  void RestartTiming();
  absl::Status EvaluateNow();
  // Evaluates on all sets; `suffix` follows their names.
  absl::Status EvaluateSets(absl::string_view suffix,
                            std::vector<EvalRecord>* records);
  absl::StatusOr<EvalRecord> EvaluateOn(const Session::Validation& set);
  // Begins to save a checkpoint, unless this step's was begun. First waits for
  // the save in flight. A caller that calls FinishSave() next sets `waits`. All
  // ranks leave this function together, because they wait for those that write
  // without limit here.
  absl::Status SaveCheckpoint(bool waits = false);
  // Makes the saver of a rank that writes some of a checkpoint's tensors.
  absl::Status MakeSaver();
  // The checkpoint of this step in `directory`.
  CheckpointJob MakeJob(const std::string& directory);
  // The job in the run's folder, which also removes old checkpoints.
  CheckpointJob MakeJobInRunFolder();
  // Saves this step in `directory`, with no other save in flight. Not
  // collective.
  absl::Status SaveNow(const std::string& directory);
  // Handles the result of the save in flight, if there is one and, without
  // `waits`, it is complete: reports the checkpoint, or returns why there is
  // none. Not collective.
  absl::Status CollectSave(bool waits);
  absl::Status FinishSave() { return CollectSave(/*waits=*/true); }
  // CollectSave() without handling errors. OK if there is nothing to collect.
  absl::Status NoteSave(bool waits);
  // Takes memory for saves in the background if there will be one.
  void PrepareToSave();
  // Saves on rank 0 if the run must end because of `status` although its
  // weights are good (an error of data or output). Waits for the save in flight
  // first. Not collective: the other ranks may be in the next step, and learn
  // of the failure when this process ends. Returns `status`, with the place of
  // the weights added; does nothing if it is OK.
  absl::Status SaveIfFailed(const absl::Status& status);
  // True if a checkpoint is due by the clock. Only rank 0 asks it.
  bool ClockAsksToSave() const;
  // SaveCheckpoint() between two steps, excluded from their time.
  absl::Status SaveByTheClock();

  bool is_writer() const { return session_->plan().is_writer(); }
  const TrainingConfig& training() const {
    return session_->plan().config.training();
  }
  bool Due(int64_t every) const { return step_ % every == 0; }

  const std::unique_ptr<Session> session_;
  BatchPrefetcher batches_;
  RunFolder folder_;
  const TrainerOptions options_;
  std::unique_ptr<RunOutputs> outputs_;  // the writing rank's, else null
  std::vector<RunObserver*> observers_;  // of outputs_, instruments, options_
  // Null on a rank that writes no tensors. A simulated run saves nothing.
  std::unique_ptr<CheckpointSaver> saver_;
  StopSignal stop_;

  int64_t step_ = 0;         // optimizer steps done
  int64_t begun_ = 0;        // the newest step that this process began
  int64_t first_step_ = 0;   // done when this process began
  int64_t samples_ = 0;      // training sequences consumed
  int64_t saved_step_ = -1;  // of the last save that was begun and not failed
  absl::Time saved_at_;      // by MonotonicNow(); or when Run() began
  // Steps of damaged checkpoints in the run's folder.
  std::set<int64_t> damaged_;
  RunOrigin origin_;
  std::string newest_checkpoint_;
  // Training time since the last logged step (or the first), without evaluation
  // and saving: training_time_ up to timed_since_ (by MonotonicNow()), plus the
  // time since then.
  absl::Duration training_time_;
  absl::Time timed_since_;
  int64_t timed_steps_ = 0;
  at::Tensor bytes_of_token_;  // BytesOfTokens(), once evaluated
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAINER_H_
