#ifndef TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
#define TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// One result of a backend and its references, in equal shapes.
struct Comparison {
  at::Tensor actual;     // any float dtype
  at::Tensor baseline;   // by eager ATen in the same precision
  at::Tensor exact;      // FP64
  at::Tensor magnitude;  // FP64; see AttentionMagnitudes()
  // Number of leading rows (dim 2) in which nearly equal numbers are rounded to
  // the dtype and subtracted.
  int64_t cancelling_rows = 0;
  // FP32 results of products that round their operands to TF32.
  bool tf32 = false;
  // For sums over rows: how many numbers of dtype `terms` each result adds,
  // whose roundings are independent.
  int64_t num_terms = 0;
  at::ScalarType terms = at::kFloat;
};

// Comparison::cancelling_rows of dQ and dK: up to the last query with so few
// keys that dP and rowsum(dO o O) are close, and the keys of these queries.
// With documents, such queries may be anywhere.
struct CancellingRows {
  CancellingRows(int64_t s, int64_t t, MaskSpec mask, bool documents = false);
  int64_t queries = 0, keys = 0;
};

// Success if infinities are equal and for each element |actual - exact| <= 2
// max |baseline - exact| + rounding of max |exact| + slack. error_bound.cc
// explains the slack.
::testing::AssertionResult Conforms(const Comparison& c);

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_ERROR_BOUND_H_
