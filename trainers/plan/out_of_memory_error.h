#ifndef TRAINERS_PLAN_OUT_OF_MEMORY_ERROR_H_
#define TRAINERS_PLAN_OUT_OF_MEMORY_ERROR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "framework/mesh/layout.h"
#include "framework/observe/memory_report.h"

namespace tessera {

// The config values that decide how much memory a step needs.
struct MemoryChoices {
  int64_t batch_size = 0;  // training.batch_size, over all ranks
  int64_t micro_batches = 1;
  Layout layout;
  int64_t context = 0;    // model.context_length
  std::string precision;  // PrecisionConfig.Mode: "FP32"
  std::string recompute;  // RecomputeConfig.Policy: "NONE"
  std::string attention;  // AttentionConfig.Backend that runs: "NAIVE"
  // A backend that supports the same problem without storing the scores; empty
  // if `attention` stores none, or if there is no such backend.
  std::string leaner_attention;
};

// The config fields that would help a run, cheapest first. `helps` says whether
// a run with these fields, "recompute { policy: BLOCK }", needs less memory.
std::vector<std::string> MemoryAdvice(
    const MemoryReport& report, const MemoryChoices& choices,
    absl::FunctionRef<bool(const std::string& fields)> helps);

// The ResourceExhausted status for a device with too little memory: `request`
// (the allocation or plan that failed), the table of `report`, and what would
// help, cheapest first.
absl::Status OutOfMemoryError(absl::string_view request,
                              const MemoryReport& report,
                              const std::vector<std::string>& advice);

}  // namespace tessera

#endif  // TRAINERS_PLAN_OUT_OF_MEMORY_ERROR_H_
