#ifndef TRAINERS_RUN_RUN_FOLDER_H_
#define TRAINERS_RUN_RUN_FOLDER_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/file_lock.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_config.pb.h"
#include "framework/dist/world.h"

namespace tessera {

// The config's field of the weights that a run starts from.
inline constexpr char kInitFrom[] = "checkpoint.init_from";

// The folder in which a run stores its results:
//   config.pbtxt   the resolved config
//   run.jsonl      every logged number
//   events.out...  the same numbers for TensorBoard
//   checkpoints/   step_00000500/ ...
//   simulated.txt  only in the folder of a simulated run: what is simulated
struct RunFolder {
  std::string path;
  // The checkpoint to resume from; null if the run starts at step 0.
  std::unique_ptr<Checkpoint> resume_from;
  // The checkpoint whose weights a run starts with at step 0; null for random
  // weights.
  std::unique_ptr<Checkpoint> init_from;
  VerifiedShare share;  // which part of them this rank has verified
  // The writing rank's lock against other processes that write to the folder.
  std::optional<FileLock> lock;

  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string log() const { return path + "/run.jsonl"; }
  std::string config() const { return path + "/config.pbtxt"; }
  std::string simulated() const { return path + "/simulated.txt"; }
};

// Opens the checkpoint at `path`, or the newest good one of the run folder
// `path`.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& path, const VerifiedShare& share = {});
// OpenCheckpoint() for the model only, which may also be in a folder without
// other files (checkpoint.h). `part` is kModel or kEmaModel.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModel(
    const std::string& path, const VerifiedShare& share = {},
    Checkpoint::Part part = Checkpoint::Part::kModel);
// The part that --weights of a program asks for: "TRAINED" or "EMA".
absl::StatusOr<Checkpoint::Part> ModelPart(absl::string_view weights);

// The newest good checkpoint of a folder of checkpoints up to step `last`;
// errors as of LatestGood(). Logs a warning for each damaged one that it skips.
absl::StatusOr<std::unique_ptr<Checkpoint>> NewestCheckpoint(
    const std::string& checkpoints, Checkpoint::Part part,
    const VerifiedShare& share,
    int64_t last = std::numeric_limits<int64_t>::max());

// The share of this rank, if all ranks read the same checkpoint.
VerifiedShare VerifiedShareOf(const WorldInfo& world);

// Decides where the run in `path` starts, by `resume`:
//   "auto"   from the newest good checkpoint of `path`, else from step 0
//   "never"  from step 0; AlreadyExists if `path` holds a run
//   else     from that checkpoint, or the newest good one of that run folder;
//            AlreadyExists if `path` holds a newer one
// AlreadyExists also if `path` holds a config.pbtxt but no run: the file is the
// user's, and the run would overwrite it; and if it holds a simulated run,
// which has no checkpoint to resume from. Logs a warning for each damaged
// checkpoint that it skips.
//
// With `writes`, first locks `path` if it exists, so that the decision stays
// valid; FailedPrecondition if another process trains there. Without, nothing
// on disk changes.
//
// This process verifies `share` of a checkpoint's tensors. If several ranks
// share that, they then call AgreeOnCheckpoints()
// (checkpoint_agreement.h).
absl::StatusOr<RunFolder> OpenRunFolder(const std::string& path,
                                        absl::string_view resume, bool writes,
                                        const VerifiedShare& share = {});

// Opens checkpoint.init_from, if the config has it and the run does not resume.
// A FieldError() of that field.
absl::Status OpenInitialWeights(const CheckpointConfig& config,
                                RunFolder* folder);

// Creates and locks the folder if it did not exist. Call this before the first
// write, which is the log's. AlreadyExists as above; FailedPrecondition if
// another process trains there, or has done so since the folder was opened.
absl::Status CreateRunFolder(RunFolder* folder);

}  // namespace tessera

#endif  // TRAINERS_RUN_RUN_FOLDER_H_
