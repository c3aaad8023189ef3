#ifndef FRAMEWORK_BASE_FILE_LOCK_H_
#define FRAMEWORK_BASE_FILE_LOCK_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera {

// Holds an exclusive lock on a file while it lives, against other processes of
// this machine and, where the file system has it, of others. The system
// releases the lock of a process that dies; the file stays. Where the file
// system knows no locks, nobody is found to hold one.
class FileLock {
 public:
  // Creates `path` if need be and waits for the lock; calls `waits` first if
  // another process has it.
  static absl::StatusOr<FileLock> Wait(const std::string& path,
                                       absl::FunctionRef<void()> waits);

  // Unavailable if another process has it.
  static absl::StatusOr<FileLock> Try(const std::string& path);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  static absl::StatusOr<FileLock> Open(const std::string& path);
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;  // -1 once moved from
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FILE_LOCK_H_
