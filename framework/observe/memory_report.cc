#include "framework/observe/memory_report.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/observe/format.h"

namespace tessera {
namespace {

double Percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / whole : 0.0;
}

}  // namespace

std::string FormatMemoryTable(const MemoryReport& report) {
  std::vector<std::pair<absl::string_view, int64_t>> lines = {
      {"parameters", report.parameters},
      {"shadow", report.shadow},
      {"gradients", report.gradients},
      {"optimizer", report.optimizer},
      {"activations", report.activations},
      {"their gradients", report.activation_gradients},
      {"workspace", report.workspace},
      {"cuBLAS", report.libraries},
      {"other", report.other},
      {"rounding", report.slack},
  };
  if (report.total() > report.allocated()) {
    lines.insert(lines.end(), {{"allocated", report.allocated()},
                               {"fragmentation", report.fragmentation},
                               {"reserved", report.reserved()},
                               {"CUDA context", report.context},
                               {"NCCL", report.communication}});
  }
  std::string table = "memory per device\n";
  for (const auto& [name, bytes] : lines) {
    if (bytes == 0) continue;
    absl::StrAppendFormat(&table, "  %-15s %12s %6.1f%%\n", name,
                          FormatBytes(bytes), Percent(bytes, report.total()));
  }
  absl::StrAppendFormat(&table, "  %-15s %12s", "total",
                        FormatBytes(report.total()));
  if (report.capacity.has_value()) {
    absl::StrAppendFormat(&table, " of %s (%.1f%%)",
                          FormatBytes(*report.capacity),
                          Percent(report.total(), *report.capacity));
  }
  return table + "\n";
}

}  // namespace tessera
