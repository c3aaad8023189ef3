#include "framework/base/new_folder.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NewFolderTest : public testing::Test {
 protected:
  NewFolderTest() : parent_(testing::TempDir() + "/new_folder") {
    RemoveTree(parent_).IgnoreError();
    EXPECT_TRUE(MakeDirectories(parent_).ok());
  }

  std::vector<std::string> Names() { return ListDirectory(parent_).value(); }

  const std::string parent_;
};

TEST_F(NewFolderTest, AppearsWhenItIsCommitted) {
  NewFolder folder = NewFolder::Begin(parent_ + "/out/").value();
  EXPECT_THAT(Names(), IsEmpty());
  ASSERT_TRUE(MakeDirectories(folder.temporary() + "/x").ok());
  NewFolder moved = std::move(folder);
  EXPECT_THAT(Names(), Not(Contains("out")));
  ASSERT_TRUE(moved.Commit().ok());
  EXPECT_THAT(Names(), ElementsAre("out"));
  EXPECT_THAT(ListDirectory(parent_ + "/out").value(), ElementsAre("x"));
  EXPECT_THAT(
      std::string(NewFolder::Begin(parent_ + "/out").status().message()),
      HasSubstr("/out exists; remove it or choose another output folder"));
}

TEST_F(NewFolderTest, LeavesNothingBehindOtherwise) {
  {
    const NewFolder folder = NewFolder::Begin(parent_ + "/out").value();
    ASSERT_TRUE(MakeDirectories(folder.temporary()).ok());
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(NewFolderTest, BeginsEmptyAfterAProcessWithTheSameId) {
  const std::string left =
      NewFolder::Begin(parent_ + "/out").value().temporary();
  ASSERT_TRUE(MakeDirectories(left + "/old").ok());
  NewFolder folder = NewFolder::Begin(parent_ + "/out").value();
  ASSERT_TRUE(MakeDirectories(folder.temporary() + "/new").ok());
  ASSERT_TRUE(folder.Commit().ok());
  EXPECT_THAT(ListDirectory(parent_ + "/out").value(), ElementsAre("new"));
}

TEST_F(NewFolderTest, WarnsOfWhatOtherProcessesLeft) {
  for (const char* name : {"out.partial-1", "other.partial-1"}) {
    ASSERT_TRUE(MakeDirectories(absl::StrCat(parent_, "/", name)).ok());
  }
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(NewFolder::Begin(parent_ + "/out").ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: " + parent_ +
                "/out.partial-1 is unfinished; remove it "
                "if the program that wrote it was killed\n");
  EXPECT_THAT(Names(), ElementsAre("other.partial-1", "out.partial-1"));
}

TEST_F(NewFolderTest, RemovesWhatKilledProcessesLeft) {
  for (const char* name : {"out.partial-1/x", "out.partial-22", "out"}) {
    ASSERT_TRUE(MakeDirectories(absl::StrCat(parent_, "/", name)).ok());
  }
  EXPECT_TRUE(RemoveUnfinished(parent_ + "/out").ok());
  EXPECT_THAT(Names(), ElementsAre("out"));
}

}  // namespace
}  // namespace tessera
