#include "tests/testing/new_process.h"

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

TEST(NewProcessWorker, DISABLED_Passes) {}
TEST(NewProcessWorker, DISABLED_Fails) { ADD_FAILURE() << "it failed"; }
TEST(NewProcessWorker, DISABLED_Skips) { GTEST_SKIP() << "no GPU here"; }

TEST(NewProcessTest, PassesOn) {
  RunInNewProcess("NewProcessWorker.DISABLED_Passes");
}

TEST(NewProcessTest, FailsAsTheOther) {
  EXPECT_NONFATAL_FAILURE(RunInNewProcess("NewProcessWorker.DISABLED_Fails"),
                          "it failed");
  EXPECT_NONFATAL_FAILURE(RunInNewProcess("NewProcessWorker.NoSuchTest"),
                          "Running 0 tests");
}

TEST(NewProcessTest, SkipsAsTheOther) {
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter catches(&results);
    RunInNewProcess("NewProcessWorker.DISABLED_Skips");
  }
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results.GetTestPartResult(0).skipped());
}

}  // namespace
}  // namespace tessera::testing
