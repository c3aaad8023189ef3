#ifndef TRAINERS_RUN_RUN_FOLDER_H_
#define TRAINERS_RUN_RUN_FOLDER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/base/file_lock.h"
#include "framework/checkpoint/checkpoint.h"

namespace tessera {

// Where a run keeps what it makes:
//   config.pbtxt   the resolved config
//   run.jsonl      every logged number
//   events.out...  the same for TensorBoard
//   checkpoints/   step_00000500/ ...
struct RunFolder {
  std::string path;
  // What the run goes on from; null when it starts at step 0.
  std::unique_ptr<Checkpoint> resume_from;
  // Whose weights a run at step 0 starts with; null for random ones.
  std::unique_ptr<Checkpoint> init_from;
  // Keeps other processes from writing to it; the writing rank's.
  std::optional<FileLock> lock;

  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string log() const { return path + "/run.jsonl"; }
  std::string config() const { return path + "/config.pbtxt"; }
};

// The checkpoint at `path`, or the newest good one of the run folder `path`.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& path);
// The same for its model only, which may also be in a folder of its own
// (checkpoint.h).
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModel(const std::string& path);

// Decides where the run `path` starts. With `writes` that holds for as long as
// the lock does, which is taken first where `path` exists already:
// FailedPrecondition while another process trains there. Else this changes
// nothing on disk. `resume`:
//   "auto"   from the newest good checkpoint of `path`, else from step 0
//   "never"  from step 0; AlreadyExists when `path` holds a run already
//   else     from that checkpoint, or the newest good one of that run folder;
//            AlreadyExists when `path` holds a newer one
// In each case AlreadyExists where `path` holds a config.pbtxt but no run: it
// is the user's, and the run's would replace it. Damaged checkpoints that are
// passed over are logged as warnings.
absl::StatusOr<RunFolder> OpenRunFolder(const std::string& path,
                                        absl::string_view resume, bool writes);

// Before the first write, which is the log's: creates and locks a folder that
// did not exist. AlreadyExists as above; FailedPrecondition when another
// process trains there, or has since it was opened.
absl::Status CreateRunFolder(RunFolder* folder);

}  // namespace tessera

#endif  // TRAINERS_RUN_RUN_FOLDER_H_
