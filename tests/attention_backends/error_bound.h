#ifndef TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
#define TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// One result of a backend, of equal shapes.
struct Comparison {
  at::Tensor actual;     // any float dtype
  at::Tensor baseline;   // by eager ATen in the same precision
  at::Tensor exact;      // FP64
  at::Tensor magnitude;  // FP64; see AttentionMagnitudes()
  bool cancels = false;  // nearly equal numbers, each rounded to the dtype
};

// max |actual - exact| <= 2 max |baseline - exact| + rounding of exact + slack,
// and equal infinities.
::testing::AssertionResult Conforms(const Comparison& c);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
