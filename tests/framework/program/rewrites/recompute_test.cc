#include "framework/program/rewrites/recompute.h"

#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/program/lifetime.h"
#include "framework/program/memory.h"
#include "framework/program/program.h"
#include "framework/program/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;

TEST(RecomputeTest, RecomputesOnlyWhatBackwardReads) {
  const Built built = TwoLayers();
  std::vector<RecomputedSegment> segments;
  for (const ProgramScope& scope : built.program.scopes()) {
    if (scope.parent == 0) segments.push_back({scope.first_op, scope.end_op});
  }
  Schedule schedule = TrainingSchedule(built.program, built.loss);
  Recompute(segments, &schedule);
  // No backward reads the results of the products.
  EXPECT_THAT(RunNames(schedule),
              ElementsAre("forward square", "forward product", "forward square",
                          "forward product", "forward total",
                          "backward total d0", "recompute square",
                          "backward product d0 d1", "backward square d0",
                          "recompute square", "backward product d1"));
  // Between the passes, only the inputs of segments and the loss are kept; the
  // first input belongs to the caller.
  const Lifetimes lifetimes = PlanLifetimes(schedule);
  EXPECT_EQ(KeptBytes(schedule, lifetimes), kRows * kWidth * 4 + 4);
}

TEST(RecomputeTest, ASegmentsLastStepRunsAgainIfItsBackwardReadsItsResult) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
  const Value loss = Total(b, Exponential(b, Square(b, x)));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = TrainingSchedule(program, loss);
  Recompute({{0, 2}}, &schedule);
  EXPECT_THAT(
      RunNames(schedule),
      ElementsAre("forward square", "forward exp", "forward total",
                  "backward total d0", "recompute square", "recompute exp",
                  "backward exp d0", "backward square d0"));
  // Its backward reads what was recomputed, so only the loss is kept.
  EXPECT_EQ(schedule.runs[6].results, schedule.runs[5].results);
  EXPECT_EQ(KeptBytes(schedule, PlanLifetimes(schedule)), 4);
}

}  // namespace
}  // namespace tessera::testing
