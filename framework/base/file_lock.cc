#include "framework/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"

namespace tessera {
namespace {

// Returns 0 or errno.
int Lock(int descriptor, int how) {
  while (flock(descriptor, how) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

bool HasNoLocks(int error) {
  return error == ENOSYS || error == ENOTSUP || error == ENOLCK;
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot open ", path));
  }
  return FileLock(descriptor);
}

absl::StatusOr<FileLock> FileLock::Wait(const std::string& path,
                                        absl::FunctionRef<void()> waits) {
  ASSIGN_OR_RETURN(FileLock lock, Open(path));
  int error = Lock(lock.descriptor_.fd(), LOCK_EX | LOCK_NB);
  if (error == EWOULDBLOCK) {
    waits();
    error = Lock(lock.descriptor_.fd(), LOCK_EX);
  }
  lock.is_exclusive_ = error == 0;
  if (error == 0 || HasNoLocks(error)) return lock;
  return SystemError(error, absl::StrCat("cannot lock ", path));
}

absl::StatusOr<FileLock> FileLock::Try(const std::string& path) {
  ASSIGN_OR_RETURN(FileLock lock, Open(path));
  const int error = Lock(lock.descriptor_.fd(), LOCK_EX | LOCK_NB);
  lock.is_exclusive_ = error == 0;
  if (error == 0 || HasNoLocks(error)) return lock;
  if (error == EWOULDBLOCK) {
    return absl::UnavailableError(
        absl::StrCat(path, " is locked by another process"));
  }
  return SystemError(error, absl::StrCat("cannot lock ", path));
}

}  // namespace tessera
