// The numeric helpers must be able to fail.

#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "tests/testing/error_budget.h"
#include "tests/testing/gradcheck.h"
#include "torch/csrc/autograd/custom_function.h"

namespace tessera::testing {
namespace {

using Inputs = std::vector<at::Tensor>;

// x^2 with the derivative `factor` * x.
class SquareFunction : public torch::autograd::Function<SquareFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x, double factor) {
    ctx->save_for_backward({x});
    ctx->saved_data["factor"] = factor;
    return x.square();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      const torch::autograd::variable_list& grads) {
    const double factor = ctx->saved_data["factor"].toDouble();
    return {grads[0] * ctx->get_saved_variables()[0] * factor, at::Tensor()};
  }
};

GradcheckCase SquareCase(double factor) {
  return {.fn =
              [factor](const Inputs& in) {
                return SquareFunction::apply(in[0], factor);
              },
          .inputs = {at::linspace(1, 2, 6, at::kDouble)}};
}

TEST(GradcheckTest, AcceptsOnlyTheDerivative) {
  EXPECT_TRUE(Gradcheck(SquareCase(2)));
  EXPECT_FALSE(Gradcheck(SquareCase(2.00001)));
  EXPECT_FALSE(Gradcheck(SquareCase(std::numeric_limits<double>::quiet_NaN())));
}

TEST(GradcheckTest, NamesTheWorstElement) {
  const ::testing::AssertionResult result = Gradcheck(SquareCase(3));
  EXPECT_NE(std::string(result.message()).find("input 0 element"),
            std::string::npos)
      << result.message();
}

TEST(ErrorBudgetTest, AllowsTwiceTheBaselinesErrorAndNoMore) {
  const at::Tensor oracle = at::zeros({4}, at::kDouble);
  const at::Tensor naive = at::tensor({0.0, 0.0, 0.5, 0.0}, at::kFloat);
  const ErrorBudget budget = ErrorBudget::AgainstBaseline(naive, oracle);
  EXPECT_TRUE(budget.Accepts(at::tensor({1.0, 0.0, 0.0, 0.0}, at::kFloat)));
  const ::testing::AssertionResult refused =
      budget.Accepts(at::tensor({0.0, 0.0, 0.0, -1.25}, at::kFloat));
  EXPECT_FALSE(refused);
  EXPECT_NE(std::string(refused.message()).find("element 3: -1.25"),
            std::string::npos)
      << refused.message();
}

TEST(ErrorBudgetTest, RefusesNanAndAnotherNumberOfElements) {
  const at::Tensor oracle = at::zeros({2}, at::kDouble);
  const ErrorBudget budget =
      ErrorBudget::AgainstBaseline(at::ones({2}, at::kFloat), oracle);
  EXPECT_FALSE(budget.Accepts(
      at::full({2}, std::numeric_limits<float>::quiet_NaN(), at::kFloat)));
  EXPECT_FALSE(budget.Accepts(at::zeros({3}, at::kFloat)));
}

TEST(BitEqualTest, DistinguishesZerosOfDifferentSign) {
  EXPECT_TRUE(BitEqual(at::zeros({3}), at::zeros({3})));
  EXPECT_FALSE(BitEqual(at::zeros({3}), -at::zeros({3})));
  EXPECT_FALSE(BitEqual(at::zeros({3}), at::zeros({3}, at::kDouble)));
}

}  // namespace
}  // namespace tessera::testing
