#include "framework/base/violations.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;

TEST(ViolationsTest, CollectsPathsFromTheRoot) {
  std::vector<Violation> list;
  const Violations root(&list);
  const Violations nested = root.In("optimizer").In("adamw");
  nested.Check(true, "beta1", "never seen");
  nested.Check(false, "beta2", "must be in [0, 1); is 1.5");
  root.Add("steps", "must be given");
  EXPECT_THAT(
      list, ElementsAre(
                AllOf(Field(&Violation::path, "optimizer.adamw.beta2"),
                      Field(&Violation::message, "must be in [0, 1); is 1.5")),
                AllOf(Field(&Violation::path, "steps"),
                      Field(&Violation::message, "must be given"))));
}

}  // namespace
}  // namespace tessera
