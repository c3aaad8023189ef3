#include "framework/program/rewrites/defer_update.h"

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

TEST(DeferUpdateTest, AnOpWaitsOnlyForTheSliceOfItsWeights) {
  const Built built = TwoLayers();
  Schedule schedule = StepOf(built.program, built.loss, /*micro_batches=*/1);
  const std::vector<std::string> plain = RunNames(schedule);
  ASSERT_EQ(plain.back(), "update 0..1024");
  EXPECT_FALSE(schedule.starts_pending);
  DeferUpdate(&schedule, /*spared_multiprocessors=*/3, /*slice_bytes=*/512);
  AddDataWaits(&schedule);
  EXPECT_TRUE(schedule.starts_pending);
  const std::vector<std::string> names = RunNames(schedule);
  ASSERT_EQ(names.size(), plain.size() + 1);
  EXPECT_THAT(
      std::vector<std::string>(names.begin(), names.begin() + 7),
      ElementsAre("update 0..512", "update 512..1024", "task", "forward square",
                  "forward product", "forward square", "forward product"));
  for (const int update : {0, 1}) {
    EXPECT_EQ(schedule.runs[update].stream, StepStream::kUpdate);
  }
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(4, ElementsAre(0)), Pair(6, ElementsAre(1))));
  for (const StepRun& run : schedule.runs) {
    const bool forward = run.kind == StepRun::Kind::kForward;
    EXPECT_EQ(run.spared_multiprocessors, forward ? 3 : 0);
  }
}

TEST(DeferUpdateTest, OnlyTheFirstMicroBatchSparesMultiprocessors) {
  const Built built = TwoLayers();
  Schedule schedule = StepOf(built.program, built.loss, /*micro_batches=*/3);
  DeferUpdate(&schedule, /*spared_multiprocessors=*/3);
  for (const StepRun& run : schedule.runs) {
    if (run.kind != StepRun::Kind::kForward) continue;
    EXPECT_EQ(run.spared_multiprocessors, run.micro_batch == 0 ? 3 : 0);
  }
}

TEST(DeferUpdateTest, SlicesHaveAtLeastTheBytesAskedFor) {
  const Built built = TwoLayers();
  Schedule schedule = StepOf(built.program, built.loss, /*micro_batches=*/1);
  DeferUpdate(&schedule, /*spared_multiprocessors=*/0, /*slice_bytes=*/513);
  EXPECT_EQ(RunNames(schedule)[0], "update 0..1024");
}

}  // namespace
}  // namespace tessera::testing
