#include "framework/program/rewrites/reduce_early.h"

#include <string>
#include <vector>

#include "framework/program/schedule.h"
#include "framework/program/stream_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/random_program.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ReduceEarlyTest, ASumFollowsTheLastGradientOfItsRange) {
  const Built built = TwoLayers();
  Schedule schedule = StepOf(built.program, built.loss, /*micro_batches=*/2,
                             /*segments=*/{});
  const std::vector<std::string> plain = RunNames(schedule);
  ASSERT_EQ(plain[21], "sum 0..512");
  ASSERT_EQ(plain[22], "sum 512..1024");
  ReduceEarly(&schedule);
  AddDataWaits(&schedule);
  const std::vector<std::string> names = RunNames(schedule);
  ASSERT_EQ(names.size(), plain.size());
  // These runs belong to the second micro-batch.
  EXPECT_THAT(std::vector<std::string>(names.begin() + 16, names.begin() + 24),
              ElementsAre("backward total d0", "backward product d0 d1",
                          "sum 512..1024", "backward square d0",
                          "backward product d1", "sum 0..512", "task", "task"));
  for (const int sum : {18, 21}) {
    EXPECT_EQ(schedule.runs[sum].stream, StepStream::kCommunication);
    EXPECT_EQ(schedule.runs[sum].phase, Phase::kBackward);
  }
  // The sum of the loss waits for the gradients' sums.
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(18, ElementsAre(17)), Pair(21, ElementsAre(20)),
                          Pair(23, ElementsAre(21))));
}

}  // namespace
}  // namespace tessera::testing
