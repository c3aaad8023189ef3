#ifndef FRAMEWORK_OBSERVE_REPORT_OP_ROOFLINE_H_
#define FRAMEWORK_OBSERVE_REPORT_OP_ROOFLINE_H_

#include <optional>
#include <string>
#include <vector>

#include "framework/observe/report/html_page.h"
#include "nlohmann/json.hpp"

namespace tessera {

// An op of one phase of a step, summed over the blocks.
struct FoldedOp {
  std::string phase, part, op;  // "backward", "block_*/ffn", "w13"
  double ms = 0, share = 0;
  double flops = 0, bytes = 0;  // 0 if not known
  std::optional<double> roofline_ms;

  std::string Name() const;
  std::optional<double> tflop_per_s() const;
  std::optional<double> gb_per_s() const;
};

// Of the rows "ops" of a step's profile (step_profile_format.h), longest first.
std::vector<FoldedOp> FoldOps(const nlohmann::ordered_json& ops);

// The rows "kernels" of which the bytes that DRAM moved were counted, as ops of
// the phase "kernels, by DRAM bytes".
std::vector<FoldedOp> CountedKernels(const nlohmann::ordered_json& kernels);

// FLOP per byte against FLOP/s, by phase, under the roofs of products and of
// memory, if the profile's "rates" have both. Absent if no op has FLOPs and
// time.
std::optional<Chart> RooflineChart(const std::vector<FoldedOp>& ops,
                                   const nlohmann::ordered_json& rates);

// The `most` ops that take longest.
HtmlTable OpTable(const std::vector<FoldedOp>& ops, size_t most);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_OP_ROOFLINE_H_
