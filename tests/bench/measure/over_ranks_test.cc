#include <vector>

#include "bench/measure/timing.h"
#include "framework/base/status_macros.h"
#include "framework/dist/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch_tests.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Status CheckLargest() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(const auto group, ProcessGroup::Create(world, at::kCPU));
  const double rank = world.rank;
  ASSIGN_OR_RETURN(
      const std::vector<double> largest,
      MaxOverRanks({rank, -rank, 0.1, 1e300 * rank}, group.get(), at::kCPU));
  EXPECT_THAT(largest, ElementsAre(2, 0, 0.1, 2e300));
  ASSIGN_OR_RETURN(const std::vector<double> none,
                   MaxOverRanks({}, group.get(), at::kCPU));
  EXPECT_THAT(none, IsEmpty());
  return group->Finish();
}

// A rank of the test below.
TEST(OverRanksWorker, DISABLED_Run) {
  const absl::Status status = CheckLargest();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(OverRanksTest, EveryRankHasTheLargestValues) {
  const LaunchedTests ranks = LaunchTests("OverRanksWorker.*", {.nproc = 3});
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
}

TEST(OverRanksTest, OneRankHasItsOwn) {
  const auto group = ProcessGroup::Create(WorldInfo{}, at::kCPU);
  ASSERT_TRUE(group.ok()) << group.status();
  const auto largest = MaxOverRanks({3, -1}, group->get(), at::kCPU);
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_THAT(*largest, ElementsAre(3, -1));
}

}  // namespace
}  // namespace tessera
