#ifndef TESTS_ATTENTION_BACKENDS_CONFORMANCE_CASES_H_
#define TESTS_ATTENTION_BACKENDS_CONFORMANCE_CASES_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"
#include "framework/cuda/device.h"

namespace tessera::testing {

enum class Values {
  kNormal,
  kHugeLogits,    // up to +-200
  kSubnormalKeys  // below the dtype's least normal number: uniform attention
};

struct Shape {
  int64_t b, s, t, h, g, d;
};

struct ConformanceCase {
  const AttentionBackend* backend = nullptr;
  Shape shape = {};
  MaskKind mask = MaskKind::kCausal;
  at::ScalarType dtype = at::kFloat;
  Values values = Values::kNormal;
  bool deterministic = false;
  const char* variant = "";  // of the backend, for the test's name

  // As a test's name; unique.
  std::string ToString() const;
  AttentionProblem Problem(const DeviceInfo& device) const;
  // Leading queries that see no key.
  int64_t BlindRows() const;
};

// For GoogleTest's messages.
void PrintTo(const ConformanceCase& c, std::ostream* out);

// Every backend of the table and the variants of NAIVE that a config can ask
// for, as far as they run on a CPU, x lengths around the tiles of kernels x
// head dims x masks x dtypes, and the extremes; of what is slow on a CPU less.
std::vector<ConformanceCase> CpuCases();
// The same on a GPU, more of each. What a backend refuses on the GPU
// at hand is for the test to skip.
std::vector<ConformanceCase> GpuCases();

// Problems whose memory is worth counting, on a GPU and on a CPU.
std::vector<ConformanceCase> PlanCases();
std::vector<ConformanceCase> CpuPlanCases();

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_CONFORMANCE_CASES_H_
