#ifndef TESTS_TESTING_GRADCHECK_H_
#define TESTS_TESTING_GRADCHECK_H_

#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "framework/params/parameter_store.h"
#include "gtest/gtest.h"

namespace tessera::testing {

struct GradcheckCase {
  // Maps the inputs to any tensor; may also read the parameters. It is called
  // many times, so it must copy inputs that it changes.
  std::function<at::Tensor(const std::vector<at::Tensor>&)> fn;
  // FP64. Inputs of a floating-point dtype are differentiated.
  std::vector<at::Tensor> inputs;
  // Also differentiates with respect to the blocks of `store` (FP64 master, no
  // shadow).
  ParameterStore* store = nullptr;
  std::vector<Parameter*> parameters;
  // |analytic - numeric| <= tolerance * (1 + |numeric|).
  double tolerance = 1e-7;
  double step = 1e-5;
};

// Compares autograd with central differences of <w, fn(inputs)>, w a fixed
// random cotangent, element by element. A failure names the worst element.
::testing::AssertionResult Gradcheck(const GradcheckCase& test_case);

}  // namespace tessera::testing

#endif  // TESTS_TESTING_GRADCHECK_H_
