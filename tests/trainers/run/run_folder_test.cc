#include "trainers/run/run_folder.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "framework/base/file.h"
#include "framework/base/file_lock.h"
#include "framework/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/checkpoint/add_tensors.h"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Simulates another process that starts a run first.
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

TEST(RunFolderTest, TheFolderIsCreatedWithTheFirstWriteIfStillNew) {
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
                  AllOf(HasSubstr(path + "/config.pbtxt exists, but its folder "
                                         "holds no run"),
                        HasSubstr("another --out, or move the file away")));
    }
  }
  // Once the run has begun, the config is the run's own.
  StartRun(path);
  EXPECT_TRUE(OpenRunFolder(path, "auto", /*writes=*/true).ok());

  const std::string late = Folder("users_late");
  RunFolder folder = OpenRunFolder(late, "auto", /*writes=*/true).value();
  ASSERT_TRUE(MakeDirectories(late).ok());
  ASSERT_TRUE(WriteFileAtomically(late + "/config.pbtxt", "# mine").ok());
  EXPECT_EQ(CreateRunFolder(&folder).code(), absl::StatusCode::kAlreadyExists);
}

void Save(const std::string& run, int64_t step) {
  ASSERT_TRUE(MakeDirectories(run).ok());
  auto writer = CheckpointWriter::Begin(run + "/checkpoints", step).value();
  for (absl::string_view name : {kModelFile, kOptimizerFile}) {
    ASSERT_TRUE(
        AddTensors(writer.get(), name, {{{"w", StoredDtype::kU8, {1}}, "w"}})
            .ok());
  }
  ASSERT_TRUE(writer->Commit({{"step", step}}, "").ok());
}

TEST(RunFolderTest, ANewerCheckpointThatCannotBeReadIsNotSkipped) {
  const std::string path = Folder("unreadable");
  Save(path, 10);
  Save(path, 20);
  const std::string older = path + "/checkpoints/step_00000010";
  const std::string moments =
      path + "/checkpoints/step_00000020/optimizer.safetensors";
  // A link to itself: the contents are good, but cannot be opened now.
  ASSERT_EQ(rename(moments.c_str(), (path + "/aside").c_str()), 0);
  ASSERT_EQ(symlink(moments.c_str(), moments.c_str()), 0);
  for (const std::string& resume : {std::string("auto"), path, older}) {
    const absl::Status refused =
        OpenRunFolder(path, resume, /*writes=*/true).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << resume;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(moments),
                      HasSubstr("Too many levels of symbolic links")));
  }
  // The model does not need that file.
  EXPECT_EQ(OpenModel(path).value()->step(), 20);
  // Without it the checkpoint is damaged, and the older one is the newest.
  ASSERT_TRUE(RemoveTree(moments).ok());
  EXPECT_EQ(
      OpenRunFolder(path, "auto", /*writes=*/true).value().resume_from->step(),
      10);
  EXPECT_TRUE(OpenRunFolder(path, older, /*writes=*/true).ok());
}

TEST(RunFolderTest, NoRunContinuesASimulatedOne) {
  const std::string path = Folder("simulated");
  StartRun(path);
  EXPECT_TRUE(OpenRunFolder(path, "auto", /*writes=*/false).ok());
  ASSERT_TRUE(WriteFileAtomically(path + "/simulated.txt", "rank 7").ok());
  for (const char* resume : {"auto", "never"}) {
    const absl::Status refused =
        OpenRunFolder(path, resume, /*writes=*/false).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("holds a simulated run"));
  }
}

TEST(RunFolderTest, ALoopOfLinksIsReported) {
  const std::string path = Folder("loop");
  ASSERT_EQ(symlink(path.c_str(), path.c_str()), 0);
  for (const absl::Status& status :
       {OpenCheckpoint(path).status(), OpenModel(path).status(),
        OpenRunFolder(path, "auto", /*writes=*/false).status(),
        OpenRunFolder(path, "auto", /*writes=*/true).status()}) {
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("Too many levels of symbolic links"));
  }
}

TEST(RunFolderTest, ALoopOfLinksIsNotAMissingManifest) {
  const std::string path = Folder("manifest_loop");
  Save(path, 10);
  const std::string checkpoint = path + "/checkpoints/step_00000010";
  const std::string manifest = checkpoint + "/manifest.json";
  ASSERT_TRUE(RemoveTree(manifest).ok());
  ASSERT_EQ(symlink(manifest.c_str(), manifest.c_str()), 0);
  for (const absl::Status& status :
       {OpenCheckpoint(checkpoint).status(), OpenModel(checkpoint).status()}) {
    EXPECT_EQ(
        std::string(status.message()),
        "cannot open " + manifest + ": Too many levels of symbolic links");
  }
}

}  // namespace
}  // namespace tessera
