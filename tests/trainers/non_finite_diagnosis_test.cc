#include "trainers/run/non_finite_diagnosis.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

TEST(NonFiniteDiagnosisTest, StepsThatAreFinitePass) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 2);
  const absl::Status status = CheckFinite(*session, 2, 8);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(NonFiniteDiagnosisTest, NamesTheFirstBadStepAndParameterStepsLater) {
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 2);
  SpoilAWeight(*session);
  Train(*session, session->step(), 2, 3);
  const absl::Status status = CheckFinite(*session, 5, 20);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("step 3 gave a gradient"),
                             testing::HasSubstr("first in ")));
}

// The step's own batch gives the loss in the message, not a later one.
TEST(NonFiniteDiagnosisTest, RepeatsTheBatchOfTheBadStep) {
  const std::vector<std::string> overflow = {"optimizer.clip_norm=1.0",
                                             "optimizer.adamw.lr=1e30"};
  const auto message = [&](int64_t steps) {
    const auto session = Toy("configs/tiny_cpu.pbtxt", overflow);
    Train(*session, session->step(), 0, steps, /*lr=*/1e30);
    return std::string(CheckFinite(*session, steps, 4 * steps).message());
  };
  EXPECT_THAT(message(2), testing::HasSubstr("step 2 gave a gradient"));
  EXPECT_EQ(message(5), message(2));
}

}  // namespace
}  // namespace tessera
