#include "trainers/run_folder.h"

#include <string>
#include <utility>

#include "framework/base/file.h"
#include "framework/base/file_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What another process does that comes first.
void StartRun(const std::string& path) {
  ASSERT_TRUE(MakeDirectories(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path + "/run.jsonl", "").ok());
}

TEST(RunFolderTest, TheWriterDecidesWhereToStartUnderTheLock) {
  const std::string path = Folder("decides");
  StartRun(path);
  {
    const FileLock other = FileLock::Try(path + "/.lock").value();
    const absl::Status refused =
        OpenRunFolder(path, "auto", /*writes=*/true).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("is being trained by another process"));
    EXPECT_TRUE(OpenRunFolder(path, "auto", /*writes=*/false).ok());
  }
  RunFolder folder = OpenRunFolder(path, "auto", /*writes=*/true).value();
  EXPECT_FALSE(FileLock::Try(path + "/.lock").ok());
  const RunFolder moved = std::move(folder);
  EXPECT_FALSE(FileLock::Try(path + "/.lock").ok());
}

TEST(RunFolderTest, AFolderIsMadeWithTheFirstWriteAndIsStillNewThen) {
  const std::string path = Folder("made");
  RunFolder folder = OpenRunFolder(path, "auto", /*writes=*/true).value();
  EXPECT_FALSE(FileExists(path));
  ASSERT_TRUE(CreateRunFolder(&folder).ok());
  EXPECT_FALSE(FileLock::Try(path + "/.lock").ok());

  const std::string taken = Folder("taken");
  RunFolder late = OpenRunFolder(taken, "auto", /*writes=*/true).value();
  StartRun(taken);
  const absl::Status refused = CreateRunFolder(&late);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("was trained by another process"));
}

TEST(RunFolderTest, AConfigWithoutARunIsTheUsers) {
  const std::string path = Folder("users");
  ASSERT_TRUE(MakeDirectories(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path + "/config.pbtxt", "# mine").ok());
  for (const bool writes : {true, false}) {
    for (const char* resume : {"auto", "never", "/nowhere"}) {
      const absl::Status refused = OpenRunFolder(path, resume, writes).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr(path + "/config.pbtxt is not of a run"),
                        HasSubstr("another --out, or move the file away")));
    }
  }
  // A run's own, as soon as it has begun.
  StartRun(path);
  EXPECT_TRUE(OpenRunFolder(path, "auto", /*writes=*/true).ok());

  const std::string late = Folder("users_late");
  RunFolder folder = OpenRunFolder(late, "auto", /*writes=*/true).value();
  ASSERT_TRUE(MakeDirectories(late).ok());
  ASSERT_TRUE(WriteFileAtomically(late + "/config.pbtxt", "# mine").ok());
  EXPECT_EQ(CreateRunFolder(&folder).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace tessera
