#include "framework/ops/relu_squared/relu_squared.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/framework/ops/op_test_util.h"
#include "tests/framework/ops/ops_as_functions.h"
#include "tests/testing/gradcheck.h"

namespace tessera::testing {
namespace {

using Inputs = std::vector<at::Tensor>;
using ReluSquaredTest = DeviceTest;

at::Tensor Apply(const Inputs& in) {
  return RunAsFunction(
      {.build = [](ProgramBuilder& b, const std::vector<Value>& x,
                   Weight) { return ReluSquared(b, x[0]); },
       .precision = PrecisionPolicy::Uniform(in[0].scalar_type())},
      in);
}

at::Tensor Plain(const Inputs& in) { return at::square(at::relu(in[0])); }

TEST_P(ReluSquaredTest, GradientMatchesCentralDifferences) {
  EXPECT_TRUE(Gradcheck(
      {.fn = Apply, .inputs = {Randn({3, 17}, 3, at::kDouble, device())}}));
}

TEST_P(ReluSquaredTest, AgreesWithPlainAutograd) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{1, 1}, {127, 40}, {2, 5, 1000}}) {
    for (const at::ScalarType dtype : FloatDtypes(device())) {
      SCOPED_TRACE(::testing::Message() << shape[0] << " x ..., " << dtype);
      const Inputs x = {Randn(shape, 4, dtype, device()) * 3};
      ExpectWithinBudget(Evaluate(Apply, x), Evaluate(Plain, x),
                         EvaluateInFp64(Plain, x));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ReluSquaredTest, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Gpu, ReluSquaredTest, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace tessera::testing
