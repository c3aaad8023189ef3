#include "framework/base/file_lock.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"

// The error of every attempt to lock; 0: none. The definition below replaces
// the C library's in this program.
static int lock_error = 0;

extern "C" int flock(int descriptor, int operation) noexcept {
  if (lock_error == 0) {
    return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  }
  errno = lock_error;
  return -1;
}

namespace tessera {
namespace {

TEST(FileLock, IsExclusive) {
  const std::string path = testing::TempDir() + "/lock";
  const auto unexpected = [] { ADD_FAILURE() << "nobody has it"; };
  std::optional<FileLock> held = FileLock::Wait(path, unexpected).value();
  // Each open file holds the lock separately, as another process would.
  EXPECT_EQ(FileLock::Try(path).status().code(),
            absl::StatusCode::kUnavailable);
  int waits = 0;
  const FileLock next = FileLock::Wait(path, [&] {
                          ++waits;
                          held.reset();
                        }).value();
  EXPECT_EQ(waits, 1);
  EXPECT_FALSE(FileLock::Try(path).ok());
}

TEST(FileLock, IsReleasedWhenItsProcessEnds) {
  const std::string path = testing::TempDir() + "/orphaned_lock";
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = FileLock::Try(path);
    _exit(lock.ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(FileLock::Try(path).ok());
}

TEST(FileLock, SaysWhetherItIsExclusive) {
  const std::string path = testing::TempDir() + "/unsupported_lock";
  const auto unexpected = [] { ADD_FAILURE() << "nobody has it"; };
  EXPECT_TRUE(FileLock::Try(path)->is_exclusive());
  EXPECT_TRUE(FileLock::Wait(path, unexpected)->is_exclusive());
  for (const int error : {ENOSYS, ENOTSUP, ENOLCK}) {
    lock_error = error;
    EXPECT_FALSE(FileLock::Try(path)->is_exclusive());
    EXPECT_FALSE(FileLock::Wait(path, unexpected)->is_exclusive());
  }
  lock_error = EIO;
  EXPECT_FALSE(FileLock::Try(path).ok());
  lock_error = 0;
}

TEST(FileLock, FailsWithoutItsFolder) {
  EXPECT_EQ(FileLock::Try("/nowhere/lock").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
