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

// Peak rates of a device, for the lower bound on time by the roofline model
// (Williams et al., "Roofline: An Insightful Visual Performance Model", 2009).
// Absent if unknown.
struct DeviceRates {
  std::optional<double> product_flops_per_s;  // of matrix products
  std::optional<double> vector_flops_per_s;   // of everything else, FP32
  std::optional<double> bytes_per_s;          // of device memory
};

// One line of the printed step.
struct StepRow {
  std::string phase;   // "forward", "recompute", "backward", "reduce" ...
  std::string stream;  // "" is the main one; "weight gradients" ...
  std::string group;   // "block_0/attention"; folded "block_0..31/attention"
  std::string name;    // "qkv"
  std::string kind;    // "linear"
  std::string kernel;  // "cuBLAS"
  std::string output;  // type of its output: "BF16 [4, 512, 2560]"
  Cost cost;           // of one run
  int64_t kept_bytes = 0;
  std::optional<double> seconds;  // by the roofline
  int64_t count = 1;              // number of runs folded into this line
  int64_t micro_batches = 1;      // that repeat them; one's values are kept
  // Time that one run took, the mean of those folded into this line; absent if
  // it was not measured.
  std::optional<double> measured_seconds;
};

// A row for each run of the first micro-batch, which stands for those of all,
// and for each run that belongs to none, in the order of the schedule.
std::vector<StepRow> StepRows(const Schedule& schedule,
                              const Lifetimes& lifetimes,
                              const DeviceRates& rates);
// Folds blocks that differ only in their number into the rows of the first.
std::vector<StepRow> FoldBlocks(absl::Span<const StepRow> rows);
std::optional<double> RooflineSeconds(const Cost& cost,
                                      const DeviceRates& rates);

// A table with a line per row, and totals by kind of op. With streams if a row
// has one beside the main one; with measured times, and their ratios to those
// by the roofline, if a row was measured.
std::string FormatStep(absl::Span<const StepRow> rows);
nlohmann::ordered_json StepToJson(absl::Span<const StepRow> rows);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_PRINTER_H_
