#include "framework/base/new_folder.h"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

// Suffix of the folder's name, before the process id, until it is complete.
constexpr absl::string_view kUnfinished = ".partial-";

// "a/b//" and "a/b/." become "a/b", because the names of temporary siblings are
// derived from it.
std::string WithoutTrailingSlashes(absl::string_view path) {
  while ((path.size() > 1 && absl::ConsumeSuffix(&path, "/")) ||
         (path.size() > 2 && absl::ConsumeSuffix(&path, "/."))) {
  }
  return std::string(path);
}

// Checks that `out`, which must not exist, can be created: creates a folder
// with a file in its place, or in the nearest existing parent, and removes it
// again.
absl::Status CheckCanMake(const std::string& out) {
  std::error_code error;
  ASSIGN_OR_RETURN(const bool exists, PathExists(out));
  if (exists || std::filesystem::is_symlink(out, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        out, " exists; remove it or choose another output folder"));
  }
  std::string missing = out;
  while (!FileExists(DirectoryOf(missing)) && DirectoryOf(missing) != missing) {
    missing = DirectoryOf(missing);
  }
  const std::string trial = absl::StrCat(missing, ".trial-", getpid());
  const auto remove_trial =
      absl::MakeCleanup([&] { RemoveTree(trial).IgnoreError(); });
  absl::Status status = MakeDirectories(trial);
  if (status.ok()) {  // a full disk still has room for an empty folder
    status = WriteFileAtomically(trial + "/file", std::string(64 << 10, 'x'));
  }
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("cannot create the output folder ", out, ": ",
                   status.message(), "; choose a folder that can be written"));
}

// The temporary folders of `path`, of any process.
absl::StatusOr<std::vector<std::string>> Unfinished(const std::string& path) {
  const std::string parent = DirectoryOf(path);
  const std::string prefix =
      absl::StrCat(path.substr(path.rfind('/') + 1), kUnfinished);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(parent));
  std::vector<std::string> unfinished;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, prefix)) continue;
    unfinished.push_back(absl::StrCat(parent, "/", name));
  }
  return unfinished;
}

}  // namespace

NewFolder::NewFolder(std::string path)
    : path_(std::move(path)),
      temporary_(absl::StrCat(path_, kUnfinished, getpid())) {}

NewFolder::NewFolder(NewFolder&& other)
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")) {}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) RemoveTree(temporary_).IgnoreError();
}

absl::StatusOr<NewFolder> NewFolder::Begin(absl::string_view path) {
  NewFolder folder(WithoutTrailingSlashes(path));
  RETURN_IF_ERROR(CheckCanMake(folder.path_));
  // A killed process may have left it: in a container, process ids repeat.
  RETURN_IF_ERROR(RemoveTree(folder.temporary_));
  // The others stay: another machine may be writing one.
  for (const std::string& other :
       Unfinished(folder.path_).value_or(std::vector<std::string>())) {
    LogWarning(absl::StrCat(other,
                            " is unfinished; remove it if the program "
                            "that wrote it was killed"));
  }
  return folder;
}

absl::Status NewFolder::Commit() {
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, absl::StrCat("cannot create ", path_));
  }
  return SyncDirectory(DirectoryOf(path_));
}

absl::Status RemoveUnfinished(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, Unfinished(path));
  for (const std::string& folder : folders) {
    RETURN_IF_ERROR(RemoveTree(folder));
  }
  return absl::OkStatus();
}

}  // namespace tessera
