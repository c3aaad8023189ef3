#include "framework/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

// The names in a directory; empty if it does not exist.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

bool Keeps(const RetentionPolicy& policy, int64_t age, int64_t step) {
  if (age < policy.keep_last) return true;
  return policy.keep_every_steps.has_value() &&
         step % *policy.keep_every_steps == 0;
}

// Renames the folder first, so that a partly deleted one is never found.
absl::Status DeleteCheckpoint(const std::string& directory,
                              const CheckpointPath& path,
                              const WritePointHook& hook) {
  const std::string doomed = absl::StrCat(
      directory, "/", kTemporaryPrefix, "deleted-", CheckpointName(path.step));
  RETURN_IF_ERROR(RemoveTree(doomed, hook));
  RETURN_IF_ERROR(RenamePath(path.folder, doomed, hook));
  return RemoveTree(doomed, hook);
}

// Notes what has become of `folder`. What cannot be deleted (permissions) only
// takes space, so it stops no training.
void NoteDeletion(const absl::Status& deleted, const std::string& folder,
                  PrunedCheckpoints* pruned) {
  if (deleted.ok()) {
    pruned->deleted.push_back(folder);
  } else {
    pruned->warnings.push_back(absl::StrCat(
        deleted.message(),
        "; no run needs it any more, but it takes space: remove it yourself"));
  }
}

// The public LatestGood() for `paths`, the checkpoints of `directory`, newest
// first.
absl::StatusOr<LatestCheckpoint> LatestGood(
    const std::string& directory, const std::vector<CheckpointPath>& paths,
    Checkpoint::Part part, const VerifiedShare& share = {}) {
  LatestCheckpoint latest;
  for (const CheckpointPath& path : paths) {
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
        Checkpoint::Open(path.folder, part, share);
    if (checkpoint.ok()) {
      latest.checkpoint = *std::move(checkpoint);
      return latest;
    }
    // A part that the run does not save.
    if (absl::IsInvalidArgument(checkpoint.status())) {
      return checkpoint.status();
    }
    if (!IsDamagedOrAbsent(checkpoint.status())) {
      latest.warnings.push_back(
          absl::StrCat(checkpoint.status().message(),
                       "; this checkpoint may be good, so no older one is used "
                       "instead: make it readable, or move ",
                       path.folder, " away"));
      return absl::Status(checkpoint.status().code(),
                          absl::StrJoin(latest.warnings, "\n"));
    }
    latest.warnings.push_back(absl::StrCat("skipping checkpoint ", path.folder,
                                           ": ",
                                           checkpoint.status().message()));
  }
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", directory));
  }
  return absl::DataLossError(
      absl::StrCat("no good checkpoint in ", directory, ":\n",
                   absl::StrJoin(latest.warnings, "\n")));
}

}  // namespace

absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(
    const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  std::vector<CheckpointPath> paths;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOfCheckpointName(name);
    if (!step.has_value()) continue;
    paths.push_back({*step, absl::StrCat(directory, "/", name)});
  }
  std::sort(paths.begin(), paths.end(),
            [](const CheckpointPath& a, const CheckpointPath& b) {
              return a.step > b.step;
            });
  return paths;
}

absl::StatusOr<LatestCheckpoint> LatestGood(const std::string& directory,
                                            Checkpoint::Part part,
                                            const VerifiedShare& share,
                                            int64_t last) {
  ASSIGN_OR_RETURN(std::vector<CheckpointPath> paths,
                   ListCheckpoints(directory));
  std::erase_if(paths,
                [&](const CheckpointPath& path) { return path.step > last; });
  return LatestGood(directory, paths, part, share);
}

absl::StatusOr<PrunedCheckpoints> PruneCheckpoints(
    const std::string& directory, const RetentionPolicy& policy,
    const WritePointHook& hook) {
  if (policy.keep_last < 1 || policy.keep_every_steps.value_or(1) < 1) {
    return absl::InvalidArgumentError(
        "keep_last and keep_every_steps must be >= 1");
  }
  ASSIGN_OR_RETURN(const std::vector<CheckpointPath> paths,
                   ListCheckpoints(directory));
  PrunedCheckpoints pruned;
  if (paths.size() <= policy.keep_last) return pruned;
  if (paths.front().folder != policy.verified) {
    ASSIGN_OR_RETURN(
        LatestCheckpoint latest,
        LatestGood(directory, paths, Checkpoint::Part::kEverything));
    pruned.warnings = std::move(latest.warnings);
  }
  const auto newest_good = static_cast<int64_t>(pruned.warnings.size());
  int64_t age = 0;  // how many newer ones count
  for (int64_t i = newest_good; i < paths.size(); ++i) {
    const bool keeps = Keeps(policy, age, paths[i].step);
    if (!policy.damaged.contains(paths[i].step)) ++age;
    if (keeps) continue;
    NoteDeletion(DeleteCheckpoint(directory, paths[i], hook), paths[i].folder,
                 &pruned);
  }
  return pruned;
}

absl::StatusOr<PrunedCheckpoints> RemoveStaleTemporaries(
    const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  PrunedCheckpoints pruned;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kTemporaryPrefix)) continue;
    const std::string folder = absl::StrCat(directory, "/", name);
    NoteDeletion(RemoveTree(folder), folder, &pruned);
  }
  return pruned;
}

}  // namespace tessera
