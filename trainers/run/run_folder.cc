#include "trainers/run/run_folder.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/field_error.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "trainers/hugging_face/hf_folder.h"

namespace tessera {
namespace {

absl::Status Lock(RunFolder* folder) {
  absl::StatusOr<FileLock> lock = FileLock::Try(folder->path + "/.lock");
  if (absl::IsUnavailable(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder->path,
        " is being trained by another process; wait for it or choose another "
        "--out"));
  }
  RETURN_IF_ERROR(lock.status());
  folder->lock.emplace(*std::move(lock));
  return absl::OkStatus();
}

bool HoldsRun(const RunFolder& folder) {
  return FileExists(folder.log()) || FileExists(folder.checkpoints());
}

// A run writes its log before its config, so a config without a log is the
// user's.
absl::Status RefuseConfigOfNoRun(const RunFolder& folder) {
  std::error_code ignored;
  if (HoldsRun(folder) ||
      !std::filesystem::is_regular_file(folder.config(), ignored)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      folder.config(),
      " exists, but its folder holds no run; a run would overwrite it with its "
      "resolved config; choose another --out, or move the file away"));
}

absl::Status RefuseSimulatedRun(const RunFolder& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(folder.simulated(), ignored)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(folder.path,
                   " holds a simulated run (simulated.txt), which cannot be "
                   "resumed; choose another --out"));
}

// A run that resumes from an older checkpoint would, hours later, reach steps
// that have checkpoints, and good checkpoints are never overwritten.
absl::Status RefuseNewerCheckpoints(const RunFolder& folder) {
  const int64_t step = folder.resume_from->step();
  ASSIGN_OR_RETURN(const std::vector<CheckpointPath> paths,
                   ListCheckpoints(folder.checkpoints()));
  for (const CheckpointPath& path : paths) {
    if (path.step <= step) break;
    const absl::Status there = Checkpoint::Open(path.folder).status();
    if (IsDamagedOrAbsent(there)) continue;
    RETURN_IF_ERROR(there);
    return absl::AlreadyExistsError(absl::StrCat(
        "cannot resume from step ", step, " in ", folder.path,
        ", which has a checkpoint of step ", path.step,
        "; choose another --out, or move away its checkpoints after step ",
        step));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenPart(
    const std::string& path, Checkpoint::Part part,
    const VerifiedShare& share) {
  if (FileExists(absl::StrCat(path, "/", kManifestFile))) {
    return Checkpoint::Open(path, part, share);
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> latest =
      NewestCheckpoint(path + "/checkpoints", part, share);
  if (absl::IsNotFound(latest.status())) {
    return absl::NotFoundError(absl::StrCat(
        path.empty() ? "''" : path, ": neither a checkpoint (no ",
        kManifestFile, ") nor the folder of a run with checkpoints"));
  }
  return latest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> NewestCheckpoint(
    const std::string& checkpoints, Checkpoint::Part part,
    const VerifiedShare& share, int64_t last) {
  ASSIGN_OR_RETURN(LatestCheckpoint latest,
                   LatestGood(checkpoints, part, share, last));
  for (const std::string& warning : latest.warnings) LogWarning(warning);
  return std::move(latest.checkpoint);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(
    const std::string& path, const VerifiedShare& share) {
  return OpenPart(path, Checkpoint::Part::kEverything, share);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenModel(
    const std::string& path, const VerifiedShare& share,
    Checkpoint::Part part) {
  if (IsHfFolder(path)) {
    if (part != Checkpoint::Part::kEmaModel) return OpenHfFolder(path);
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is a folder of transformers, which has no averaged weights"));
  }
  const auto has = [&](absl::string_view name) {
    return FileExists(absl::StrCat(path, "/", name));
  };
  const bool has_model = has(kModelFile) || has(IndexName(kModelFile));
  if (has_model && !has(kManifestFile)) {
    return Checkpoint::OpenModelFolder(path, part);
  }
  return OpenPart(path, part, share);
}

absl::StatusOr<Checkpoint::Part> ModelPart(absl::string_view weights) {
  if (weights == "TRAINED") return Checkpoint::Part::kModel;
  if (weights == "EMA") return Checkpoint::Part::kEmaModel;
  return absl::InvalidArgumentError(
      absl::StrCat("--weights=", weights, ": must be TRAINED or EMA"));
}

VerifiedShare VerifiedShareOf(const WorldInfo& world) {
  if (world.simulated) return {};  // there are no others
  return {.index = world.rank, .count = world.world_size};
}

absl::StatusOr<RunFolder> OpenRunFolder(const std::string& path,
                                        absl::string_view resume, bool writes,
                                        const VerifiedShare& share) {
  RunFolder folder{.path = path, .share = share};
  if (writes && FileExists(path)) RETURN_IF_ERROR(Lock(&folder));
  RETURN_IF_ERROR(RefuseSimulatedRun(folder));
  RETURN_IF_ERROR(RefuseConfigOfNoRun(folder));
  if (resume == "never") {
    if (HoldsRun(folder)) {
      return absl::AlreadyExistsError(absl::StrCat(
          path,
          " already holds a run, which is never overwritten; choose another "
          "--out, or resume it with --resume=auto"));
    }
    return folder;
  }
  if (resume != "auto") {
    ASSIGN_OR_RETURN(folder.resume_from,
                     OpenCheckpoint(UserPath(resume), share));
    RETURN_IF_ERROR(RefuseNewerCheckpoints(folder));
    return folder;
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> latest = NewestCheckpoint(
      folder.checkpoints(), Checkpoint::Part::kEverything, share);
  if (latest.ok()) {
    folder.resume_from = *std::move(latest);
  } else if (!absl::IsNotFound(latest.status())) {
    return latest.status();
  }
  return folder;
}

absl::Status OpenInitialWeights(const CheckpointConfig& config,
                                RunFolder* folder) {
  if (!config.has_init_from() || folder->resume_from != nullptr) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Checkpoint>> model =
      OpenModel(UserPath(config.init_from()), folder->share);
  if (!model.ok()) return FieldError(kInitFrom, model.status());
  folder->init_from = *std::move(model);
  return absl::OkStatus();
}

absl::Status CreateRunFolder(RunFolder* folder) {
  if (folder->lock.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(MakeDirectories(folder->path));
  RETURN_IF_ERROR(Lock(folder));
  if (!HoldsRun(*folder)) return RefuseConfigOfNoRun(*folder);
  return absl::FailedPreconditionError(absl::StrCat(
      folder->path,
      " was trained by another process after this one had started; resume it "
      "with --resume=auto or choose another --out"));
}

}  // namespace tessera
