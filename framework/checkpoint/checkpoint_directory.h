#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/durable_file.h"

namespace tessera {

// The checkpoints of one run: the step_... folders of a directory.

struct CheckpointPath {
  int64_t step = 0;
  std::string folder;
};

// Newest first, verified or not; empty where there is no such directory.
absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(
    const std::string& directory);

struct LatestCheckpoint {
  std::unique_ptr<Checkpoint> checkpoint;
  // One line for every newer checkpoint that was passed over, saying why.
  std::vector<std::string> warnings;
};

// The newest checkpoint of which `part` verifies. NotFound where there is none
// at all; DataLoss, with the reason of each, where none is good. Only damaged
// ones are passed over: one that the system cannot read, for want of a
// permission or anything else that may pass, is an error with that reason.
absl::StatusOr<LatestCheckpoint> LatestGood(
    const std::string& directory,
    Checkpoint::Part part = Checkpoint::Part::kEverything);

struct RetentionPolicy {
  int keep_last = 2;  // >= 1
  // Steps that are multiples of it stay for ever.
  std::optional<int64_t> keep_every_steps;
};

struct PrunedCheckpoints {
  std::vector<std::string> deleted;  // folders
  // One line for every checkpoint newer than the newest good one, saying why.
  std::vector<std::string> warnings;
};

// Deletes what the policy does not keep. Reads checkpoints back, from the
// newest on, until one verifies: the policy's count begins with that one, so
// the only good one never goes, and damaged ones that are newer stay. DataLoss,
// with nothing deleted, where none is good; the same for LatestGood()'s other
// errors.
absl::StatusOr<PrunedCheckpoints> PruneCheckpoints(
    const std::string& directory, const RetentionPolicy& policy,
    const WritePointHook& hook = nullptr);

// Deletes what a killed process left behind (.tmp-...) and returns it. To be
// called before training, by one process: it would delete the checkpoint that
// another one is writing.
absl::StatusOr<std::vector<std::string>> RemoveStaleTemporaries(
    const std::string& directory);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
