// Kills a process, or moves its folder away, at every point at which saving
// changes the disk.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/checkpoint/durable_file.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The weights of a step: 64 bytes, written in pieces of 24.
std::string WeightsOf(int64_t step) {
  return std::string(64, static_cast<char>('a' + step));
}

absl::Status Save(const std::string& directory, int64_t step,
                  const WritePointHook& hook) {
  ASSIGN_OR_RETURN(auto writer, CheckpointWriter::Begin(directory, step, hook));
  for (absl::string_view name : {kModelFile, kOptimizerFile}) {
    ASSIGN_OR_RETURN(
        SafetensorsWriter * file,
        writer->AddTensorFile(name, {{"w", StoredDtype::kF32, {4, 4}}}));
    const std::string weights = WeightsOf(step);
    for (size_t at = 0; at < weights.size(); at += 24) {
      RETURN_IF_ERROR(file->Write(weights.substr(at, 24)));
    }
    RETURN_IF_ERROR(file->Finish());
  }
  RETURN_IF_ERROR(writer->Commit({{"step", step}}, "").status());
  return PruneCheckpoints(directory, {.keep_last = 1}, hook).status();
}

// Saves step 2 in a child that is killed before its `n`-th operation. Returns
// whether it finished first.
bool SaveInChild(const std::string& directory, int n) {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const absl::Status status = Save(directory, 2, [&](absl::string_view) {
      if (++count == n) raise(SIGKILL);
    });
    _exit(status.ok() ? 0 : 1);
  }
  int result = 0;
  EXPECT_EQ(waitpid(child, &result, 0), child);
  if (WIFEXITED(result)) {
    EXPECT_EQ(WEXITSTATUS(result), 0);
    return true;
  }
  EXPECT_EQ(WTERMSIG(result), SIGKILL);
  return false;
}

// The step of the newest good checkpoint, fully verified.
int64_t VerifiedStep(const std::string& directory) {
  const auto latest = LatestGood(directory);
  EXPECT_TRUE(latest.ok()) << latest.status();
  if (!latest.ok()) return -1;
  EXPECT_TRUE(latest->warnings.empty()) << latest->warnings.front();
  const Checkpoint& checkpoint = *latest->checkpoint;
  for (absl::string_view name : {kModelFile, kOptimizerFile}) {
    const auto file = checkpoint.Tensors(name);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return -1;
    EXPECT_EQ((*file)->Find("w")->bytes, WeightsOf(checkpoint.step()));
  }
  EXPECT_EQ(checkpoint.state()["step"], checkpoint.step());
  return checkpoint.step();
}

TEST(CheckpointCrashTest, EveryPointOfASaveLeavesAGoodCheckpoint) {
  const std::string root = testing::TempDir() + "/checkpoint_crash_test";
  ASSERT_TRUE(RemoveTree(root).ok());
  ASSERT_TRUE(MakeDirectories(root).ok());
  int old_survived = 0;
  int new_survived = 0;
  bool finished = false;
  for (int n = 1; !finished; ++n) {
    SCOPED_TRACE(absl::StrCat("killed at write point ", n));
    const std::string directory = absl::StrCat(root, "/", n);
    ASSERT_TRUE(Save(directory, 1, nullptr).ok());
    finished = SaveInChild(directory, n);
    const int64_t step = VerifiedStep(directory);
    (step == 1 ? old_survived : new_survived)++;
    // A new checkpoint, once visible, stays.
    EXPECT_EQ(step, new_survived > 0 ? 2 : 1);

    // The next process cleans up and saves the same step.
    ASSERT_TRUE(RemoveStaleTemporaries(directory).ok());
    if (step == 1) {
      const absl::Status status = Save(directory, 2, nullptr);
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ(VerifiedStep(directory), 2);
  }
  // Two tensor files with 1 header and 3 pieces each, three text files, each
  // created and synced, the folders, the rename and the pruning. Both outcomes
  // of the rename were seen often.
  EXPECT_GE(old_survived, 20);
  EXPECT_GE(new_survived, 4);
}

TEST(CheckpointCrashTest, ARunsFolderThatIsMovedAwayStaysAway) {
  const std::string root = testing::TempDir() + "/moved_away_test";
  ASSERT_TRUE(RemoveTree(root).ok());
  int failed = 0;
  bool moved = true;
  for (int n = 1; moved; ++n) {
    SCOPED_TRACE(absl::StrCat("moved at write point ", n));
    const std::string run = absl::StrCat(root, "/", n);
    ASSERT_TRUE(MakeDirectories(run).ok());
    moved = false;
    int count = 0;
    const absl::Status status =
        Save(run + "/checkpoints", 1, [&](absl::string_view) {
          if (++count != n) return;
          moved = RenamePath(run, run + ".away", nullptr).ok();
        });
    EXPECT_EQ(FileExists(run), !moved);
    failed += !status.ok();
  }
  EXPECT_GE(failed, 20);
}

}  // namespace
}  // namespace tessera
