#include "framework/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FileTest : public ::testing::Test {
 protected:
  FileTest()
      : dir_(absl::StrCat(::testing::TempDir(), "/file_test_", ::getpid())) {
    EXPECT_TRUE(RemoveTree(dir_).ok());
    EXPECT_TRUE(MakeDirectories(dir_).ok());
  }
  ~FileTest() override { EXPECT_TRUE(RemoveTree(dir_).ok()); }

  std::string Path(absl::string_view name) const {
    return absl::StrCat(dir_, "/", name);
  }
  std::vector<std::string> Names() const {
    return ListDirectory(dir_).value_or(std::vector<std::string>{"error"});
  }

  const std::string dir_;
};

TEST_F(FileTest, ReadsBackWhatItWrote) {
  // Empty, with a zero byte, and larger than the first read's buffer.
  for (const std::string& contents :
       {std::string(), std::string("a\0b\n", 4), std::string(300000, 'x')}) {
    ASSERT_TRUE(WriteFileAtomically(Path("f"), contents).ok());
    EXPECT_EQ(ReadFile(Path("f")).value(), contents);
  }
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_F(FileTest, ReadsFilesOfUnknownSize) {
  EXPECT_THAT(ReadFile("/proc/self/status").value(), StartsWith("Name:"));
}

TEST_F(FileTest, RespectsTheSizeLimit) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), std::string(300000, 'x')).ok());
  EXPECT_EQ(ReadFile(Path("f"), 300000).value().size(), 300000u);
  for (const std::string& path : {Path("f"), std::string("/dev/zero")}) {
    const absl::Status status = ReadFile(path, 299999).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(path + ": it is larger than 299999 bytes"));
  }
  EXPECT_EQ(ReadFile("/dev/null").value(), "");
}

TEST_F(FileTest, WriteReplacesTheFileNotItsContents) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "old").ok());
  // A hard link to the old file stands for a reader that has it open.
  ASSERT_EQ(::link(Path("f").c_str(), Path("reader").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "new").ok());
  EXPECT_EQ(ReadFile(Path("f")).value(), "new");
  EXPECT_EQ(ReadFile(Path("reader")).value(), "old");
}

TEST_F(FileTest, WriteKeepsASymbolicLink) {
  ASSERT_TRUE(MakeDirectories(Path("elsewhere")).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("elsewhere/f"), "old").ok());
  ASSERT_EQ(::symlink("elsewhere/f", Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(Path("link"), "new").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(Path("link")));
  EXPECT_EQ(ReadFile(Path("elsewhere/f")).value(), "new");
  EXPECT_THAT(Names(), ElementsAre("elsewhere", "link"));
  EXPECT_THAT(ListDirectory(Path("elsewhere")).value(), ElementsAre("f"));
  // What a killed writer leaves is where the file is.
  const std::string left = Path("elsewhere/f.tmp.4711.3906f92736b6f80a");
  ASSERT_TRUE(WriteFileAtomically(left, "x").ok());
  ASSERT_TRUE(RemoveTemporarySiblings(Path("link")).ok());
  EXPECT_FALSE(FileExists(left));
}

TEST_F(FileTest, WriteToAPipeKeepsThePipe) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string contents(300000, 'x');  // more than the pipe holds
  std::string received;
  // Does not block, and keeps the pipe open until the writer has opened it.
  const int fd = ::open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(fd, 0);
  absl::Status written;
  std::thread writer(
      [&] { written = WriteFileAtomically(Path("pipe"), contents); });
  char buffer[4096];
  ssize_t size = -1;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while ((size != 0 || received.empty()) && absl::Now() < deadline) {
    size = ::read(fd, buffer, sizeof(buffer));
    if (size > 0) received.append(buffer, static_cast<size_t>(size));
  }
  writer.join();
  ::close(fd);
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(received, contents);
  EXPECT_TRUE(std::filesystem::is_fifo(Path("pipe")));
  EXPECT_THAT(Names(), ElementsAre("pipe"));
}

// The link stands for the device, so that a fault cannot remove that.
TEST_F(FileTest, WriteToADeviceKeepsItAndReportsItsErrors) {
  ASSERT_EQ(::symlink("/dev/null", Path("null").c_str()), 0);
  ASSERT_EQ(::symlink("/dev/full", Path("full").c_str()), 0);
  EXPECT_TRUE(WriteFileAtomically(Path("null"), "x").ok());
  const absl::Status status = WriteFileAtomically(Path("full"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), absl::StrCat("cannot write ", Path("full"),
                                           ": No space left on device"));
  EXPECT_TRUE(std::filesystem::is_character_file(Path("null")));
  EXPECT_TRUE(std::filesystem::is_character_file(Path("full")));
  EXPECT_THAT(Names(), ElementsAre("full", "null"));
  // Only root can make a device, and not every file system lets it be used.
  const bool made =
      ::mknod(Path("device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  if (!made || !ReadFile(Path("device")).ok()) return;
  EXPECT_TRUE(WriteFileAtomically(Path("device"), "x").ok());
  EXPECT_TRUE(std::filesystem::is_character_file(Path("device")));
}

TEST_F(FileTest, FailedWriteLeavesNothingBehind) {
  ASSERT_TRUE(MakeDirectories(Path("taken")).ok());
  // A directory cannot be replaced by a file.
  const absl::Status status = WriteFileAtomically(Path("taken"), "x");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("taken")));
  EXPECT_THAT(Names(), ElementsAre("taken"));
}

TEST_F(FileTest, ConcurrentWritersLeaveOneWholeFile) {
  const std::string a(100000, 'a'), b(100000, 'b');
  const auto write = [this](const std::string& contents) {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(WriteFileAtomically(Path("f"), contents).ok());
    }
  };
  std::thread other(write, a);
  write(b);
  other.join();
  const std::string result = ReadFile(Path("f")).value();
  EXPECT_TRUE(result == a || result == b);
  EXPECT_THAT(Names(), ElementsAre("f"));
}

TEST_F(FileTest, RemovesFilesOfAKilledWriter) {
  for (const char* name : {"f", "f.tmp.4711.3906f92736b6f80a", "f.tmp.mine",
                           "f.tmp.1.txt", "g.tmp.4711.3906f92736b6f80a"}) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), "x").ok());
  }
  const absl::Status status = RemoveTemporarySiblings(Path("f"));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(), ElementsAre("f", "f.tmp.1.txt", "f.tmp.mine",
                                   "g.tmp.4711.3906f92736b6f80a"));
}

TEST_F(FileTest, NewFilesHaveTheUsersPermissions) {
  const mode_t mask = ::umask(022);
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  ::umask(mask);
  struct stat info;
  ASSERT_EQ(::stat(Path("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644);
}

TEST_F(FileTest, ErrorsNameThePathAndTheReason) {
  const absl::Status status = ReadFile(Path("none")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), absl::StrCat("cannot read ", Path("none"),
                                           ": No such file or directory"));
  EXPECT_FALSE(ReadFile(dir_).ok());
  EXPECT_EQ(WriteFileAtomically(Path("no/f"), "x").code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ListDirectory(Path("none")).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  EXPECT_FALSE(MakeDirectories(Path("f/below")).ok());
}

TEST_F(FileTest, DistinguishesAbsentFromInaccessible) {
  ASSERT_TRUE(WriteFileAtomically(Path("f"), "x").ok());
  ASSERT_EQ(::symlink("loop", Path("loop").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", Path("dangling").c_str()), 0);
  EXPECT_TRUE(PathExists(Path("f")).value());
  for (const char* absent : {"none", "none/f", "f/below", "dangling"}) {
    EXPECT_FALSE(PathExists(Path(absent)).value()) << absent;
    EXPECT_FALSE(FileExists(Path(absent))) << absent;
  }
  for (const char* unknown : {"loop", "loop/f"}) {
    EXPECT_THAT(std::string(PathExists(Path(unknown)).status().message()),
                HasSubstr("Too many levels of symbolic links"));
    EXPECT_TRUE(FileExists(Path(unknown))) << unknown;
  }
}

TEST_F(FileTest, MakesListsGlobsAndRemovesTrees) {
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  ASSERT_TRUE(MakeDirectories(Path("a/b/c")).ok());
  for (const char* name : {"a/2.bin", "a/1.bin", "a/x.txt"}) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), name).ok());
  }
  EXPECT_THAT(ListDirectory(Path("a")).value(),
              ElementsAre("1.bin", "2.bin", "b", "x.txt"));
  EXPECT_THAT(Glob(Path("a/*.bin")).value(),
              ElementsAre(Path("a/1.bin"), Path("a/2.bin")));
  EXPECT_THAT(Glob(Path("a/*.none")).value(), ElementsAre());
  // A link inside the tree is removed; its target stays.
  ASSERT_TRUE(WriteFileAtomically(Path("outside"), "x").ok());
  ASSERT_EQ(::symlink(Path("outside").c_str(), Path("a/link").c_str()), 0);
  ASSERT_TRUE(RemoveTree(Path("a")).ok());
  EXPECT_FALSE(FileExists(Path("a")));
  EXPECT_TRUE(FileExists(Path("outside")));
  EXPECT_TRUE(RemoveTree(Path("a")).ok());
}

// Sets an environment variable, or unsets it (nullptr), during its lifetime.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    Set(value);
  }
  ~ScopedVariable() { Set(old_.has_value() ? old_->c_str() : nullptr); }

  void Set(const char* value) const {
    if (value == nullptr) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, value, 1);
    }
  }

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

TEST(UserPathTest, IsRelativeToTheUsersDirectory) {
  const ScopedVariable directory("BUILD_WORKING_DIRECTORY", nullptr);
  EXPECT_EQ(UserPath("runs/a"), "runs/a");
  directory.Set("/home/ada");
  EXPECT_EQ(UserPath("runs/a"), "/home/ada/runs/a");
  EXPECT_EQ(UserPath("/data/x"), "/data/x");
}

TEST(UserPathTest, KnowsTheHomeFolder) {
  const ScopedVariable directory("BUILD_WORKING_DIRECTORY", "/work");
  const ScopedVariable home("HOME", "/home/ada");
  EXPECT_EQ(UserPath("~/runs/a"), "/home/ada/runs/a");
  EXPECT_EQ(UserPath("~ada"), "/work/~ada");
}

TEST(UserCacheDirTest, FollowsTheXdgSpecification) {
  const ScopedVariable home("HOME", "/home/ada");
  const ScopedVariable cache("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(UserCacheDir().value(), "/cache/tessera");
  cache.Set("relative");
  EXPECT_EQ(UserCacheDir().value(), "/home/ada/.cache/tessera");
  cache.Set(nullptr);
  EXPECT_EQ(UserCacheDir().value(), "/home/ada/.cache/tessera");
  home.Set(nullptr);
  const absl::Status none = UserCacheDir().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()), StartsWith("no cache folder: "));
}

TEST(RuntimeFilesTest, FindsInstalledFiles) {
  const auto found = FindRuntimeFile("tests/framework/base/BUILD.bazel");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(ReadFile(*found).value(), HasSubstr("file_test"));
}

TEST(RuntimeFilesTest, ErrorListsWhereItLooked) {
  const absl::Status status = FindRuntimeFile("configs/none.pbtxt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("configs/none.pbtxt"),
                               HasSubstr(".runfiles/tessera")));
}

}  // namespace
}  // namespace tessera
