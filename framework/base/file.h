#ifndef FRAMEWORK_BASE_FILE_H_
#define FRAMEWORK_BASE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// File access through POSIX calls. Every error names the path and the system's
// reason: "cannot read runs/a/log: No such file or directory". For the status
// codes see system_error.h.

// Default limit of ReadFile().
inline constexpr int64_t kMaxReadBytes = int64_t{1} << 30;

// Reads a whole file, or a pipe until its end. InvalidArgument above
// `max_bytes`, so that an endless file (/dev/zero) is an error.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes = kMaxReadBytes);

// Writes all of `contents` at the descriptor's position. After an error, part
// of it may be written. `path` is only used in the error message.
absl::Status WriteAll(int descriptor, absl::string_view contents,
                      const std::string& path);

// Replaces `path` atomically: a reader sees the complete old file or the
// complete new one, also after a loss of power at any moment. Writes a
// temporary sibling, syncs it, renames it and syncs the directory.
//
// A symbolic link stays, and the file that it names is replaced. A device, a
// pipe, and a file on this process's stdout or stderr are not replaced but
// written to.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents);

// Returns the folder that contains `path`, or "." if `path` is only a name.
std::string DirectoryOf(const std::string& path);

// Returns the existing file that `path` links to, or `path` itself if it is no
// symbolic link or the link is broken.
std::string LinkTarget(const std::string& path);

// Removes temporary siblings that a killed WriteFileAtomically() of `path`
// left. Only call this while no other process writes `path`.
absl::Status RemoveTemporarySiblings(const std::string& path);

// Syncs `directory`, so that created, renamed and removed names in it survive a
// loss of power.
absl::Status SyncDirectory(const std::string& directory);

// Creates `path`, whose parent must exist, and syncs the parent. OK if it
// exists.
absl::Status MakeDirectory(const std::string& path);
// The same, and creates every missing parent, too.
absl::Status MakeDirectories(const std::string& path);

// Whether a file or directory exists at `path`; follows symbolic links. An
// error if the system cannot tell, for example because of a directory without
// search permission or a loop of symbolic links.
absl::StatusOr<bool> PathExists(const std::string& path);

// PathExists(), but true if the system cannot tell. Only use this for a path
// that is opened next, which then reports the reason.
bool FileExists(const std::string& path);

// The names (not paths) in `directory`, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(
    const std::string& directory);

// Removes `path` and everything below it; OK if it does not exist. Symbolic
// links are removed, not followed.
absl::Status RemoveTree(const std::string& path);

// The paths that match a shell pattern (*, ?, [a-z]), sorted. May be empty.
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern);

// Resolves a relative path from a user. `bazel run` starts programs in another
// directory and passes the user's in BUILD_WORKING_DIRECTORY, which then is the
// base. Absolute paths are returned unchanged, and so are all paths without
// that variable. "~/" is $HOME: a shell leaves it in "--out=~/run".
std::string UserPath(absl::string_view path);

// The folder for files that can be recreated (prepared text, compiled kernels):
// $XDG_CACHE_HOME/tessera, else $HOME/.cache/tessera. FailedPrecondition if
// neither variable is set.
absl::StatusOr<std::string> UserCacheDir();

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FILE_H_
