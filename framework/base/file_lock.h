#ifndef FRAMEWORK_BASE_FILE_LOCK_H_
#define FRAMEWORK_BASE_FILE_LOCK_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "framework/base/file_descriptor.h"

namespace tessera {

// An exclusive lock on a file, held during the object's lifetime, against other
// processes of this machine and, if the file system supports it, of other
// machines. If a process dies, the system releases its lock; the file stays. On
// a file system without locks every attempt succeeds.
class FileLock {
 public:
  // Creates `path` if it is missing and waits for the lock. Calls `waits`
  // before waiting if another process holds it.
  static absl::StatusOr<FileLock> Wait(const std::string& path,
                                       absl::FunctionRef<void()> waits);

  // Unavailable if another process holds the lock.
  static absl::StatusOr<FileLock> Try(const std::string& path);

  // False on a file system without locks: others may have "locked" it, too.
  bool is_exclusive() const { return is_exclusive_; }

 private:
  static absl::StatusOr<FileLock> Open(const std::string& path);
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor descriptor_;
  bool is_exclusive_ = false;
};

}  // namespace tessera

#endif  // FRAMEWORK_BASE_FILE_LOCK_H_
