#include "framework/program/program.h"

#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST(ProgramBuilderTest, FrozenPatternsMustMatchWholeBlocks) {
  ProgramTarget target = CpuTarget();
  target.frozen = {"none.*"};
  ProgramBuilder b(target);
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Product(b, x, Matrix(b, "w", kWidth, kWidth));
  EXPECT_THAT(std::string(std::move(b).Build().status().message()),
              HasSubstr("'none.*' matches no parameter; names look like w"));
  target.frozen = {"q"};
  ProgramBuilder fused(target);
  const Value y = fused.Input("x", {{kRows, kWidth}, at::kFloat});
  Product(
      fused, y,
      fused.Parameter({.name = "qk",
                       .members = {{"q", {kWidth, kWidth}, Init::kLinear},
                                   {"k", {kWidth, kWidth}, Init::kLinear}}}));
  EXPECT_THAT(std::string(std::move(fused).Build().status().message()),
              HasSubstr("only part of qk"));
}

TEST(ProgramBuilderDeathTest, ParametersAreReadInTheOrderOfTheirGradients) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Matrix(b, "first", kWidth, kWidth);
  const Weight second = Matrix(b, "second", kWidth, kWidth);
  EXPECT_DEATH(Product(b, x, second), "second is read before first");
}

}  // namespace
}  // namespace tessera::testing
