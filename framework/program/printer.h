#ifndef FRAMEWORK_PROGRAM_PRINTER_H_
#define FRAMEWORK_PROGRAM_PRINTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What a device can do at best, for the times that a roofline allows
// (Williams et al., "Roofline: An Insightful Visual Performance Model", 2009).
// Absent where it is not known.
struct DeviceRates {
  std::optional<double> product_flops_per_s;  // of matrix products
  std::optional<double> vector_flops_per_s;   // of everything else, FP32
  std::optional<double> bytes_per_s;          // of device memory
};

// One line of the printed step.
struct StepRow {
  std::string phase;   // "forward", "recompute", "backward", "reduce" ...
  std::string group;   // "block_0/attention"; folded "block_0..31/attention"
  std::string name;    // "qkv"
  std::string kind;    // "linear"
  std::string kernel;  // "cuBLAS"
  std::string output;  // type of what it writes: "BF16 [4, 512, 2560]"
  Cost cost;           // of one of the folded runs
  int64_t kept_bytes = 0;
  std::optional<double> seconds;  // by the roofline
  int64_t count = 1;              // how many runs this line stands for
};

// A row for each run, in the order of the schedule.
std::vector<StepRow> StepRows(const Schedule& schedule,
                              const Lifetimes& lifetimes,
                              const DeviceRates& rates);
// Folds blocks that differ only in their number into the rows of the first.
std::vector<StepRow> FoldBlocks(absl::Span<const StepRow> rows);
std::optional<double> RooflineSeconds(const Cost& cost,
                                      const DeviceRates& rates);

// A table with a line for each row, and totals by kind of op.
std::string FormatStep(absl::Span<const StepRow> rows);
nlohmann::ordered_json StepToJson(absl::Span<const StepRow> rows);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_PRINTER_H_
