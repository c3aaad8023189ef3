#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/durable_file.h"

namespace tessera {

// The checkpoints of a run: the step_... folders of a directory.

struct CheckpointPath {
  int64_t step = 0;
  std::string folder;
};

// Newest first, verified or not; empty if the directory does not exist.
absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(
    const std::string& directory);

struct LatestCheckpoint {
  std::unique_ptr<Checkpoint> checkpoint;
  // One line for each newer checkpoint that was skipped, with the reason.
  std::vector<std::string> warnings;
};

// The newest checkpoint up to step `last` whose `part` is good, as far as
// `share` verifies it. NotFound if there is no checkpoint; DataLoss, with the
// reason for each, if none is good. Only damaged checkpoints are skipped. If
// the system cannot read one (permissions, or another error that may be
// temporary), that error is returned.
absl::StatusOr<LatestCheckpoint> LatestGood(
    const std::string& directory,
    Checkpoint::Part part = Checkpoint::Part::kEverything,
    const VerifiedShare& share = {},
    int64_t last = std::numeric_limits<int64_t>::max());

struct RetentionPolicy {
  int keep_last = 2;  // >= 1
  // Checkpoints whose step is a multiple of it are kept forever.
  std::optional<int64_t> keep_every_steps;
  // Steps whose checkpoints are known to be damaged: keep_last does not count
  // them.
  std::set<int64_t> damaged;
  // The folder of a checkpoint that was just verified, so that it is not read
  // once more; may be empty.
  std::string verified;
};

struct PrunedCheckpoints {
  std::vector<std::string> deleted;  // folders
  // One line for each checkpoint newer than the newest good one, with the
  // reason, and for each folder that cannot be deleted.
  std::vector<std::string> warnings;
};

// Deletes the checkpoints that the policy does not keep. Verifies checkpoints
// from the newest on until one is good, and applies the policy from that one
// on, so that the only good checkpoint is never deleted, and newer damaged ones
// stay. DataLoss, with nothing deleted, if none is good; other errors as in
// LatestGood().
absl::StatusOr<PrunedCheckpoints> PruneCheckpoints(
    const std::string& directory, const RetentionPolicy& policy,
    const WritePointHook& hook = nullptr);

// Deletes what a killed process left behind (.tmp-...). Call it before
// training, from one process: it would also delete a checkpoint that another
// process is writing.
absl::StatusOr<PrunedCheckpoints> RemoveStaleTemporaries(
    const std::string& directory);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
