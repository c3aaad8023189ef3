#include "framework/program/schedule.h"

#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "framework/program/program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ScheduleTest, BackwardVisitsTheOpsInReverseAndSkipsConstants) {
  const Built built = TwoLayers();
  const Schedule schedule = TrainingSchedule(built.program, built.loss);
  EXPECT_THAT(
      RunNames(schedule),
      ElementsAre("forward square", "forward product", "forward square",
                  "forward product", "forward total", "backward total d0",
                  "backward product d0 d1", "backward square d0",
                  // x is a constant, so its square gets no gradient.
                  "backward product d1"));
  EXPECT_EQ(schedule.FirstBackward(), 5);
  EXPECT_THAT(schedule.without_gradient, IsEmpty());
}

TEST(ScheduleTest, FrozenParametersGetNoGradient) {
  ProgramTarget target = CpuTarget();
  target.frozen = {"one.*"};
  const Built built = TwoLayers(target);
  EXPECT_THAT(RunNames(TrainingSchedule(built.program, built.loss)),
              ElementsAre("forward square", "forward product", "forward square",
                          "forward product", "forward total",
                          "backward total d0", "backward product d1"));
}

TEST(ScheduleTest, AValueWithTwoReadersGetsTheSumOfTheirGradients) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat}, true);
  const Value square = Square(b, x);
  const Value exponential = Exponential(b, x);
  const Value loss = Total(b, Sum(b, square, exponential));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss);
  EXPECT_THAT(RunNames(schedule),
              ElementsAre("forward square", "forward exp", "forward sum",
                          "forward total", "backward total d0",
                          "backward exp d0", "backward square d0", "add"));
  ASSERT_EQ(schedule.input_gradients.size(), 1u);
  EXPECT_EQ(schedule.input_gradients[0].input, x.index);
}

TEST(ScheduleTest, AccumulatesTheGradientOfATiedWeight) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Weight w = Matrix(b, "w", kWidth, kWidth);
  const Value loss = Total(b, Product(b, Product(b, x, w), w));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  std::vector<bool> accumulates;
  for (const StepRun& run : TrainingSchedule(program, loss).runs) {
    for (const GradientWrite& write : run.d_operands) {
      if (write.parameter >= 0) accumulates.push_back(write.accumulate);
    }
  }
  EXPECT_THAT(accumulates, ElementsAre(false, true));
}

}  // namespace
}  // namespace tessera::testing
