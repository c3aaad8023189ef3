#include "framework/base/file_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"

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

TEST(FileLock, FailsWithoutItsFolder) {
  EXPECT_EQ(FileLock::Try("/nowhere/lock").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera
