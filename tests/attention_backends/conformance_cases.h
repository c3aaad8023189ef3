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
  MaskSpec mask = MaskSpec::Causal();
  at::ScalarType dtype = at::kFloat;
  Values values = Values::kNormal;
  bool deterministic = false;
  bool tf32 = false;         // with at::kFloat
  const char* variant = "";  // of the backend, for the test's name
  bool documents = false;    // PackedDocuments()
  bool sinks = false;        // of the heads
  double soft_cap = 0;

  // A unique name for a test.
  std::string ToString() const;
  // The same for all cases with equal inputs and expected results: the name
  // without the backend and whether it is deterministic.
  std::string ProblemName() const;
  AttentionProblem Problem(const DeviceInfo& device) const;
  // Leading queries that see no key.
  int64_t BlindRows() const;
};

// For GoogleTest's messages.
void PrintTo(const ConformanceCase& c, std::ostream* out);

// Every backend of the table and every variant of NAIVE, if it runs on a CPU, x
// lengths around the kernels' tile sizes x head dims x masks x dtypes, and
// extreme values; fewer cases of what is slow on a CPU.
std::vector<ConformanceCase> CpuCases();
// More of these cases, for a GPU. The test skips what a backend does not
// support on the GPU.
std::vector<ConformanceCase> GpuCases();

// Problems whose memory is worth counting, on a GPU and on a CPU.
std::vector<ConformanceCase> PlanCases();
std::vector<ConformanceCase> CpuPlanCases();

}  // namespace tessera::testing

#endif  // TESTS_ATTENTION_BACKENDS_CONFORMANCE_CASES_H_
