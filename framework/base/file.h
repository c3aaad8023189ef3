#ifndef FRAMEWORK_BASE_FILE_H_
#define FRAMEWORK_BASE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Files, by POSIX calls. Every error names the path and the system's reason:
// "cannot read runs/a/log: No such file or directory". Codes: system_error.h.

// The most that ReadFile() reads unless told otherwise.
inline constexpr int64_t kMaxReadBytes = int64_t{1} << 30;

// The whole file or what a pipe carries. InvalidArgument above `max_bytes`, so
// that a file that never ends (/dev/zero) is an error.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes = kMaxReadBytes);

// Writes all of `contents` at the descriptor's position. `path` is for the
// error: a part may be written then.
absl::Status WriteAll(int descriptor, absl::string_view contents,
                      const std::string& path);

// Replaces `path` as one: a reader, or a machine that loses power at any
// moment, sees the old file or the new one, complete. Writes a temporary
// sibling, syncs it, renames it, syncs the directory.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents);

// Removes the temporary siblings that WriteFileAtomically(`path`) left where
// its process was killed. Only call this while no other process writes `path`.
absl::Status RemoveTemporarySiblings(const std::string& path);

// Makes what entered `directory` (created, renamed or removed names) survive a
// loss of power.
absl::Status SyncDirectory(const std::string& directory);

// Creates `path` and every missing parent, each of which survives a loss of
// power; fine if it exists already.
absl::Status MakeDirectories(const std::string& path);

// Whether a file or directory is at `path`, symbolic links followed. An error
// if the system cannot tell: a folder on the way that may not be searched, a
// loop of symbolic links.
absl::StatusOr<bool> PathExists(const std::string& path);

// The same, and true if the system cannot tell: opening the path then says why.
// Only use this for what is opened next.
bool FileExists(const std::string& path);

// The names (not paths) in `directory`, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(
    const std::string& directory);

// Removes `path` with everything below it; fine if it is not there. Symbolic
// links are removed, not followed.
absl::Status RemoveTree(const std::string& path);

// The paths that match a shell pattern (*, ?, [a-z]), sorted; may be none.
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern);

// What a user means by `path`: `bazel run` starts programs in a directory of
// its own and names the user's in BUILD_WORKING_DIRECTORY; relative paths start
// there. Unchanged when absolute or without that variable.
std::string UserPath(absl::string_view path);

// Where what can be made again may be kept between runs (prepared text,
// compiled kernels): $XDG_CACHE_HOME/tessera, else $HOME/.cache/tessera.
// FailedPrecondition when neither variable is set.
absl::StatusOr<std::string> UserCacheDir();

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FILE_H_
