#ifndef FRAMEWORK_CHECKPOINT_CHECKPOINT_PARTS_H_
#define FRAMEWORK_CHECKPOINT_CHECKPOINT_PARTS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/checkpoint/durable_file.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The ranks that write one checkpoint together, each on a thread or in a
// process of its own, in a folder that all of them see. They communicate
// through small files in that folder: each rank except the leader leaves one
// when it is done, RANK.part.json, for which the leader waits.
struct CheckpointWriters {
  std::vector<int> ranks = {0};  // the first is the leader
  int index = 0;                 // this rank's in `ranks`
  // True once one of the ranks is gone, so that waiting for it is in vain. Null
  // if nobody can know.
  std::function<bool()> gone;

  bool leads() const { return index == 0; }
  int rank() const { return ranks[index]; }
  int leader() const { return ranks.front(); }
};

// Waits until `done` returns true. Unavailable, with `message`, if
// CheckpointWriters::gone() first is.
absl::Status AwaitRank(const CheckpointWriters& writers,
                       const std::function<bool()>& done,
                       absl::string_view message);

// Leaves the part of a rank that has written its files: their entries of the
// manifest.
absl::Status LeavePart(const std::string& folder, int rank,
                       const nlohmann::json& files, const WritePointHook& hook);
// Leaves the part of a rank that cannot write them. Makes room for it first, by
// removing `files`, because the disk may be full.
absl::Status LeaveFailure(const std::string& folder, int rank,
                          const std::vector<std::string>& files,
                          const absl::Status& why, const WritePointHook& hook);
// Waits for the part of `rank`, removes it and returns the entries of the
// manifest. The rank's own error, which names it, if it failed; Unavailable if
// it is gone.
absl::StatusOr<nlohmann::json> AwaitPart(const std::string& folder, int rank,
                                         const CheckpointWriters& writers,
                                         const WritePointHook& hook);

}  // namespace tessera

#endif  // FRAMEWORK_CHECKPOINT_CHECKPOINT_PARTS_H_
