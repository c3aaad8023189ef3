#ifndef TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
#define TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// One result of a backend, of equal shapes.
struct Comparison {
  at::Tensor actual;     // any float dtype
  at::Tensor baseline;   // by eager ATen in the same precision
  at::Tensor exact;      // FP64
  at::Tensor magnitude;  // FP64; see AttentionMagnitudes()
  // In so many rows (dim 2), the first, nearly equal numbers, each rounded to
  // the dtype, are subtracted.
  int64_t cancelling_rows = 0;
};

// The cancelling rows of dQ and of dK: those of queries with so few keys that
// each weighs much, so that dP and rowsum(dO o O) are close, and of such keys.
struct CancellingRows {
  CancellingRows(int64_t s, int64_t t, bool causal);
  int64_t queries = 0, keys = 0;
};

// |actual - exact| <= 2 max |baseline - exact| + rounding of max |exact| +
// slack for each element, and equal infinities. The slack is that of few cases,
// which error_bound.cc names.
::testing::AssertionResult Conforms(const Comparison& c);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
