#include "tests/testing/error_budget.h"

#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"

namespace tessera::testing {
namespace {

at::Tensor Wide(const at::Tensor& t) {
  return t.detach().to(at::kCPU, at::kDouble).reshape({-1});
}

}  // namespace

ErrorBudget ErrorBudget::AgainstBaseline(const at::Tensor& naive,
                                         const at::Tensor& oracle,
                                         double factor) {
  ErrorBudget budget;
  budget.oracle_ = Wide(oracle);
  const double naive_error =
      (Wide(naive) - budget.oracle_).abs().max().item<double>();
  const double rounding =
      (Wide(oracle.to(naive.scalar_type())) - budget.oracle_)
          .abs()
          .max()
          .item<double>();
  budget.bound_ = factor * naive_error + rounding;
  return budget;
}

::testing::AssertionResult ErrorBudget::Accepts(
    const at::Tensor& result) const {
  const at::Tensor got = Wide(result);
  if (got.numel() != oracle_.numel()) {
    return ::testing::AssertionFailure()
           << got.numel() << " elements; the oracle has " << oracle_.numel();
  }
  const at::Tensor error =
      at::nan_to_num((got - oracle_).abs(), INFINITY, INFINITY);
  const int64_t worst = error.argmax().item<int64_t>();
  if (error[worst].item<double>() <= bound_) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "element " << worst << ": " << got[worst].item<double>()
         << ", oracle " << oracle_[worst].item<double>() << ", error "
         << error[worst].item<double>() << ", bound " << bound_;
}

::testing::AssertionResult BitEqual(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return ::testing::AssertionFailure()
           << a.sizes() << " " << a.scalar_type() << " against " << b.sizes()
           << " " << b.scalar_type();
  }
  const auto bytes = [](const at::Tensor& t) {
    return t.detach().cpu().contiguous().view({-1}).view(at::kByte);
  };
  const at::Tensor differs = bytes(a) != bytes(b);
  if (!differs.any().item<bool>()) return ::testing::AssertionSuccess();
  const int64_t first = differs.nonzero()[0].item<int64_t>() /
                        static_cast<int64_t>(a.element_size());
  return ::testing::AssertionFailure()
         << "element " << first << ": "
         << a.detach().reshape({-1})[first].item<double>() << " against "
         << b.detach().reshape({-1})[first].item<double>();
}

}  // namespace tessera::testing
