#include "framework/program/rewrites/overlap_weight_gradients.h"

#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/program/program.h"
#include "framework/program/schedule.h"
#include "framework/program/stream_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// The runs that are not of the main stream.
std::vector<int> RunsBeside(const Schedule& schedule) {
  std::vector<int> beside;
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    if (schedule.runs[i].stream != StepStream::kMain) {
      beside.push_back(static_cast<int>(i));
    }
  }
  return beside;
}

TEST(OverlapWeightGradientsTest, AtMostTwoWeightGradientsAreUnderWay) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (const char* name : {"a", "b", "c", "d"}) {
    y = Product(b, y, Matrix(b, name, kWidth, kWidth));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = TrainingSchedule(program, loss);
  OverlapWeightGradients(&schedule);
  AddDataWaits(&schedule);
  EXPECT_THAT(
      RunNames(schedule),
      ElementsAre("forward product", "forward product", "forward product",
                  "forward product", "forward total", "backward total d0",
                  "backward product d1", "backward product d0",
                  "backward product d1", "backward product d0",
                  "backward product d1", "backward product d0",
                  // Nothing is left to overlap it with.
                  "backward product d1"));
  EXPECT_THAT(RunsBeside(schedule), ElementsAre(6, 8, 10));
  // Each waits for the gradient that it reads, and the run beside the third for
  // the first.
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(6, ElementsAre(5)), Pair(8, ElementsAre(7)),
                          Pair(10, ElementsAre(9)), Pair(11, ElementsAre(6))));
  const StreamOrder order(schedule);
  EXPECT_EQ(order.JoinedAt(6), 11);
  EXPECT_EQ(order.JoinedAt(8), 13);
  EXPECT_EQ(order.MayBeginAt(8), 8);
  EXPECT_TRUE(order.IsBefore(6, 12));
  EXPECT_FALSE(order.IsBefore(8, 12));
  // The gradient of an activation reads the weight only.
  EXPECT_THAT(schedule.runs[7].operands[0], -1);
  EXPECT_THAT(schedule.runs[6].operands[1], -1);
}

TEST(OverlapWeightGradientsTest, ATiedWeightsGradientsKeepTheirOrder) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Weight w = Matrix(b, "w", kWidth, kWidth);
  const Value loss = Total(b, Product(b, Product(b, x, w), w));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  Schedule schedule = TrainingSchedule(program, loss);
  OverlapWeightGradients(&schedule);
  AddDataWaits(&schedule);
  ASSERT_THAT(RunsBeside(schedule), ElementsAre(4));
  // The last run adds to what that one has written.
  EXPECT_THAT(WaitsOf(schedule),
              ElementsAre(Pair(4, ElementsAre(3)), Pair(6, ElementsAre(4))));
}

}  // namespace
}  // namespace tessera::testing
