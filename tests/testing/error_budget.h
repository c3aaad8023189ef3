#ifndef TESTS_TESTING_ERROR_BUDGET_H_
#define TESTS_TESTING_ERROR_BUDGET_H_

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// The error budget of a low-precision result: `factor` times the error of a
// straightforward computation in the same precision, plus the rounding of the
// oracle to the result's dtype. Uses maxima over all elements, so that the
// result does not depend on single elements of the baseline.
//
//   EXPECT_TRUE(ErrorBudget::AgainstBaseline(naive, oracle).Accepts(result));
class ErrorBudget {
 public:
  // oracle: FP64. naive: the same computation in the result's precision.
  static ErrorBudget AgainstBaseline(const at::Tensor& naive,
                                     const at::Tensor& oracle,
                                     double factor = 2);

  // A failure names the worst element, its value and the bound.
  ::testing::AssertionResult Accepts(const at::Tensor& result) const;

 private:
  ErrorBudget() = default;

  at::Tensor oracle_;
  double bound_ = 0;
};

// Same shape, dtype and bits. A failure names the first element that differs.
::testing::AssertionResult BitEqual(const at::Tensor& a, const at::Tensor& b);

}  // namespace tessera::testing

#endif  // TESTS_TESTING_ERROR_BUDGET_H_
