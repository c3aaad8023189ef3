#include "tests/testing/gradcheck.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/gradient_state.h"
#include "torch/csrc/autograd/autograd.h"

namespace tessera::testing {
namespace {

// The scalar to differentiate.
class Objective {
 public:
  explicit Objective(const GradcheckCase& test_case) : case_(test_case) {
    const at::NoGradGuard no_grad;
    const at::Tensor y = case_.fn(case_.inputs);
    at::Generator generator = at::detail::createCPUGenerator(/*seed=*/17);
    cotangent_ = at::randn(y.sizes(), generator, at::kDouble).to(y.device());
  }

  at::Tensor Tensor(const std::vector<at::Tensor>& inputs) const {
    return (case_.fn(inputs) * cotangent_).sum();
  }

  // The value for the current inputs and parameters.
  double Value() const {
    const at::NoGradGuard no_grad;
    return Tensor(case_.inputs).item<double>();
  }

 private:
  const GradcheckCase& case_;
  at::Tensor cotangent_;
};

// d(objective)/d(variable) by central differences. Perturbs `variable` in
// place.
at::Tensor Numeric(const Objective& objective, const at::Tensor& variable,
                   double step) {
  const at::NoGradGuard no_grad;
  at::Tensor flat = variable.detach().view({-1});
  at::Tensor numeric = at::zeros({flat.numel()}, at::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const double value = flat[i].item<double>();
    flat[i].fill_(value + step);
    const double above = objective.Value();
    flat[i].fill_(value - step);
    const double below = objective.Value();
    flat[i].fill_(value);
    numeric[i].fill_((above - below) / (2 * step));
  }
  return numeric;
}

::testing::AssertionResult Compare(const std::string& what,
                                   const at::Tensor& analytic,
                                   const at::Tensor& numeric,
                                   double tolerance) {
  const at::Tensor got = analytic.detach().reshape({-1}).cpu();
  const at::Tensor ratio =
      (got - numeric).abs() / (tolerance * (1 + numeric.abs()));
  const int64_t worst =
      at::nan_to_num(ratio, INFINITY, INFINITY).argmax().item<int64_t>();
  if (ratio[worst].item<double>() <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << what << " element " << worst << ": autograd "
         << got[worst].item<double>() << ", central difference "
         << numeric[worst].item<double>() << ", " << ratio[worst].item<double>()
         << " x the tolerance";
}

}  // namespace

::testing::AssertionResult Gradcheck(const GradcheckCase& test_case) {
  const Objective objective(test_case);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : test_case.inputs) {
    leaves.push_back(input.is_floating_point() ? input.clone().requires_grad_()
                                               : input);
  }
  if (test_case.store != nullptr) BeginGradients(*test_case.store);
  torch::autograd::backward({objective.Tensor(leaves)});
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].is_floating_point()) continue;
    if (!leaves[i].grad().defined()) {
      return ::testing::AssertionFailure() << "no gradient for input " << i;
    }
    const auto result =
        Compare(absl::StrCat("input ", i), leaves[i].grad(),
                Numeric(objective, test_case.inputs[i], test_case.step),
                test_case.tolerance);
    if (!result) return result;
  }
  for (Parameter* parameter : test_case.parameters) {
    const at::Tensor analytic = parameter->grad().clone();
    const auto result =
        Compare(parameter->name(), analytic,
                Numeric(objective, parameter->As(at::kDouble), test_case.step),
                test_case.tolerance);
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tessera::testing
