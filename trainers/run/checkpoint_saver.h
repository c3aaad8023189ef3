#ifndef TRAINERS_RUN_CHECKPOINT_SAVER_H_
#define TRAINERS_RUN_CHECKPOINT_SAVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/base/host_memory.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/data/tokenize/tokenizer.h"
#include "framework/dist/process_group.h"
#include "nlohmann/json.hpp"
#include "trainers/run/state_copy.h"
#include "trainers/run/train_step.h"
#include "trainers/run/training_state.h"

namespace tessera {

// ExcusedWork of a rank that saves.
inline constexpr char kWritesACheckpoint[] = "writes a checkpoint";

// A checkpoint to write. The ranks that do not lead need only the first three
// fields.
struct CheckpointJob {
  std::string directory;
  int64_t step = 0;
  absl::Time begun;  // when training stopped for it, by MonotonicNow()
  // This rank writes everything, without the others; needs the whole state.
  bool alone = false;
  // What it holds beside the tensors.
  nlohmann::json state;
  std::string config_text;
  const Tokenizer* tokenizer = nullptr;  // outlives the save; may be null
  // Called before the first change to the disk, on any thread; may be null.
  std::function<absl::Status()> check;
  // Removes older checkpoints afterwards.
  std::optional<RetentionPolicy> retention;
};

struct SavedCheckpoint {
  int64_t step = 0;
  // Empty unless the checkpoint is complete or, on a rank that does not lead,
  // this rank's files are.
  std::string folder;
  // OK, or why there is no checkpoint, or why older ones cannot be read.
  absl::Status status;
  std::vector<std::string> warnings;  // of PruneCheckpoints()
  // How long training was held up: until Start() returned, and on the device by
  // the next update. How long writing took.
  absl::Duration held_up, writing;
};

// Writes a rank's files of checkpoints on a thread of its own, from a copy of
// what they hold (StateCopy), while training continues. Without memory for a
// copy, this rank's files are complete when Start() returns. One save at a
// time.
//
// All ranks that write call Start() for the same checkpoints. The leader's save
// is complete once the files of all are, and the others' saves once the leader
// has renamed the folder; a rank that fails makes the leader's save fail, with
// an error that names the rank.
class CheckpointSaver {
 public:
  struct Options {
    bool background = true;        // false: never copies
    std::vector<int> ranks = {0};  // Layout::checkpoint_ranks()
    int index = 0;                 // this rank's in `ranks`
    // Whose ranks wait for this one while Start() writes or takes memory; may
    // be null.
    ProcessGroup* group = nullptr;
    // Tests set these.
    uint64_t max_file_bytes = kMaxTensorFileBytes;
    WritePointHook write_point;
    std::function<int64_t()> free_host_bytes = FreeHostBytes;
  };
  // State and step outlive the saver. Call everything on the thread that
  // trains.
  CheckpointSaver(const TrainingState& state, TrainStep* step, Options options);
  // Finishes the save in flight.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // For a rank that does not write, when the others call Start(): its part in
  // the copy of a divided state.
  static absl::Status TakePart(const TrainingState& state, TrainStep* step);

  // Begins to take memory for the copy, on another thread. Otherwise the first
  // Start() takes it.
  void Prepare();

  // Saves what the state is once the current stream has done its work; flushes
  // the step first. A caller that `waits` for the result anyway gets no copy
  // unless there is memory for one already, or ranks divide the state. The
  // result of an earlier save must have been collected.
  absl::Status Start(CheckpointJob job, bool waits);

  // Whether a save was started whose result is not collected.
  bool in_flight() const { return saved_.valid(); }
  // Call it if one of the ranks has ended: a save in flight fails if the part
  // of any other rank is missing, and later saves do, too.
  void GiveUpOnOthers() { gone_ = true; }
  // The result of the save in flight; nullopt if there is none or, without
  // `waits`, if it is not complete.
  std::optional<SavedCheckpoint> Collect(bool waits);

 private:
  using Allocated = absl::StatusOr<std::unique_ptr<StateCopy>>;

  // Whether there is memory for a copy. Takes it, or waits for Prepare(),
  // unless the caller `waits` for the result.
  bool HasCopy(bool waits);
  // Not while ranks gather the state: then none of them may hang.
  std::unique_ptr<ExcusedWork> Excuse() const;
  CheckpointWriters Writers(const CheckpointJob& job) const;
  absl::StatusOr<StateFiles> Files(const CheckpointWriters& writers) const;
  // Writes the values in `from`; an error if there are none.
  SavedCheckpoint Write(const CheckpointJob& job,
                        const absl::StatusOr<StateBuffers>& from) const;
  absl::StatusOr<std::string> WriteFiles(
      const CheckpointJob& job, const absl::StatusOr<StateBuffers>& from) const;

  const TrainingState state_;
  TrainStep* const step_;
  Options options_;
  std::unique_ptr<StateCopy> copy_;  // null until there is memory for it
  std::atomic<bool> stop_ = false;   // gives up allocating_
  std::atomic<bool> gone_ = false;   // one of the ranks
  std::future<Allocated> allocating_;
  absl::Duration held_up_;  // by the last Start()
  std::future<SavedCheckpoint> saved_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_CHECKPOINT_SAVER_H_
