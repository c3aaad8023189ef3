// Tests what survives a loss of power. Killing a process does not show this,
// because the page cache outlives the process. Every sync is needed.

#include <sys/stat.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/checkpoint/add_tensors.h"
#include "tests/framework/checkpoint/disk_journal.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

absl::Status Save(const std::string& directory, int64_t step) {
  ASSIGN_OR_RETURN(auto writer, CheckpointWriter::Begin(directory, step));
  for (absl::string_view name : {kModelFile, kOptimizerFile}) {
    const std::string weights(64, 'w');
    RETURN_IF_ERROR(
        AddTensors(writer.get(), name,
                   {{{"w", StoredDtype::kF32, {4, 4}}, weights.data()}}));
  }
  RETURN_IF_ERROR(writer->AddText(kTokenizerFile, "{}"));
  return writer->Commit({{"step", step}}, "").status();
}

class DurabilityTest : public testing::Test {
 protected:
  DurabilityTest()
      : root_(absl::StrCat(
            testing::TempDir(), "/durability_test.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(RemoveTree(root_).ok());
    EXPECT_TRUE(MakeDirectories(root_).ok());
  }

  const std::string root_;
};

void ExpectDurable(const DiskJournal& journal) {
  EXPECT_THAT(journal.faults(), IsEmpty());
  EXPECT_THAT(journal.Unsynced(), IsEmpty());
}

TEST_F(DurabilityTest, ACheckpointIsSyncedBeforeItHasItsNameAndTheNameAfter) {
  const DiskJournal journal(root_);
  ASSERT_TRUE(MakeDirectories(root_ + "/runs/a").ok());
  ASSERT_TRUE(Save(root_ + "/runs/a/checkpoints", 1).ok());
  EXPECT_EQ(journal.renames(), 1);
  // The files, their folder, its parent, and the parents of three more folders.
  EXPECT_GE(journal.syncs(), 6 + 1 + 4);
  ExpectDurable(journal);
}

TEST_F(DurabilityTest, AFolderThatAnotherProcessMadeIsSyncedToo) {
  const DiskJournal journal(root_);
  const std::string directory = root_ + "/checkpoints";
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  ASSERT_TRUE(Save(directory, 1).ok());
  ExpectDurable(journal);
}

TEST_F(DurabilityTest, AReplacementOfADamagedCheckpointIsSyncedToo) {
  ASSERT_TRUE(Save(root_, 1).ok());
  ASSERT_TRUE(RemoveTree(root_ + "/step_00000001/state.json").ok());
  const DiskJournal journal(root_);
  ASSERT_TRUE(Save(root_, 1).ok());
  EXPECT_EQ(journal.renames(), 2);
  ExpectDurable(journal);
  EXPECT_TRUE(Checkpoint::Open(root_ + "/step_00000001").ok());
}

TEST_F(DurabilityTest, AFileIsSyncedBeforeItReplacesAnotherAndItsNameAfter) {
  const DiskJournal journal(root_);
  for (const char* contents : {"old", "new"}) {
    ASSERT_TRUE(WriteFileAtomically(root_ + "/f", contents).ok());
    ExpectDurable(journal);
  }
  EXPECT_EQ(journal.renames(), 2);
}

TEST_F(DurabilityTest, EveryFolderThatIsMadeIsSyncedIntoItsParent) {
  const DiskJournal journal(root_);
  ASSERT_TRUE(MakeDirectories(root_ + "/a/b/c").ok());
  EXPECT_EQ(journal.syncs(), 3);
  ExpectDurable(journal);
}

}  // namespace
}  // namespace tessera
