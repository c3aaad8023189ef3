#include "framework/observe/report/memory_sections.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "framework/observe/block_path.h"
#include "framework/observe/format.h"
#include "framework/observe/memory_record.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/memory_timeline.h"
#include "framework/observe/report/run_charts.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostSavedRows = 20;

double BytesAt(const Json& record, absl::string_view path) {
  return NumberAt(record, path).value_or(0);
}

std::string Bytes(std::optional<double> bytes) {
  if (!bytes.has_value()) return "n/a";
  return absl::StrCat(*bytes < 0 ? "-" : "",
                      FormatBytes(std::llabs(std::llround(*bytes))));
}

std::string Words(absl::string_view name) {
  return absl::StrReplaceAll(name, {{"_", " "}});
}

// ---- The timeline.

void AddTimeline(const std::vector<Json>& records, HtmlSection* section) {
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    const std::string step =
        absl::StrCat("step ", FormatWhole(NumberAt(*record, "step")));
    std::vector<Chart> charts = MemoryTimeline(
        ObjectAt(*record, "timeline"), absl::StrCat("Memory during ", step),
        absl::StrCat("What ", step, " allocates and frees"));
    if (charts.empty()) continue;
    absl::c_move(charts, std::back_inserter(section->charts));
    return;
  }
}

// ---- Phases and categories.

HtmlTable PhaseTable(const Json& record) {
  HtmlTable table{.title = "By phase",
                  .columns = {"phase", "peak", "allocated at its end",
                              "reserved at its end"}};
  const Json& phases = ObjectAt(record, "phases");
  double most = 0;
  for (const auto& [name, phase] : phases.items()) {
    most = std::max({most, BytesAt(phase, "peak"), BytesAt(phase, "reserved")});
  }
  for (const auto& [name, phase] : phases.items()) {
    const double peak = BytesAt(phase, "peak");
    table.rows.push_back({{name},
                          {Bytes(peak), most > 0 ? peak / most : 0},
                          {Bytes(BytesAt(phase, "allocated"))},
                          {Bytes(BytesAt(phase, "reserved"))}});
  }
  return table;
}

// A line of a breakdown: a category or a sum of the lines above.
struct BreakdownLine {
  const char* figure;
  std::string name;
  bool is_sum = false;
};

// What adds up to the allocator's own figures.
std::vector<BreakdownLine> BreakdownLines() {
  std::vector<BreakdownLine> lines;
  for (const char* category : kMemoryCategoryNames) {
    lines.push_back({category, Words(category)});
  }
  lines.push_back({"slack", "rounding by the allocator"});
  lines.push_back({"allocated", "allocated", true});
  lines.push_back({"fragmentation", "reserved, but not allocated"});
  lines.push_back({"reserved", "reserved", true});
  return lines;
}

HtmlTable CategoryTable(const Json& record) {
  HtmlTable table{.title = "By category",
                  .columns = {"category", "at the peak", "of allocated",
                              "at the step's end"}};
  const double allocated = BytesAt(record, "peak.allocated");
  bool is_part = true;  // of what is allocated
  for (const BreakdownLine& line : BreakdownLines()) {
    const double peak = BytesAt(record, absl::StrCat("peak.", line.figure));
    const double end = BytesAt(record, absl::StrCat("end.", line.figure));
    is_part = is_part && !line.is_sum;
    if (peak == 0 && end == 0) continue;
    TableCell share;
    if (is_part && allocated > 0) {
      share = {FormatShare(peak / allocated), peak / allocated};
    }
    table.rows.push_back({{line.name, std::nullopt, line.is_sum},
                          {Bytes(peak), std::nullopt, line.is_sum},
                          std::move(share),
                          {Bytes(end), std::nullopt, line.is_sum}});
  }
  return table;
}

// ---- What is saved for backward.

// By op, "block_*/ffn/w13", in which blocks.
struct SavedBytes {
  struct Op {
    std::string name;
    double bytes = 0;                         // of all blocks
    std::map<std::string, double> per_block;  // "block_3"
  };
  std::vector<Op> ops;  // in their order
  // "block_3", and the bytes of all its ops.
  std::vector<std::pair<std::string, double>> blocks;
};

SavedBytes ReadSaved(const Json& saved) {
  SavedBytes read;
  std::map<std::string, size_t> place;
  for (const auto& [block, ops] : saved.items()) {
    if (!ops.is_object()) continue;
    read.blocks.emplace_back(block, 0);
    for (const auto& [op, bytes] : ops.items()) {
      if (!bytes.is_number()) continue;
      const std::string name =
          op == block ? op : FoldBlocks(absl::StrCat(block, "/", op));
      const auto [found, added] = place.emplace(name, read.ops.size());
      if (added) read.ops.push_back({.name = name});
      SavedBytes::Op& entry = read.ops[found->second];
      entry.bytes += bytes.get<double>();
      entry.per_block[block] += bytes.get<double>();
      read.blocks.back().second += bytes.get<double>();
    }
  }
  return read;
}

Chart SavedChart(const SavedBytes& saved) {
  double most = 0;
  for (const auto& [block, bytes] : saved.blocks) most = std::max(most, bytes);
  const ByteUnit unit = ByteUnitFor(most);
  Chart chart{.kind = Chart::Kind::kBars,
              .title = "Saved for backward",
              .x_title = "block",
              .y_title = unit.name};
  for (const auto& [block, bytes] : saved.blocks) {
    chart.categories.emplace_back(BlockLabel(block));
  }
  for (const SavedBytes::Op& op : saved.ops) {
    ChartSeries series{.name =
                           absl::StrReplaceAll(op.name, {{"block_*/", ""}})};
    for (const auto& [block, bytes] : saved.blocks) {
      const auto found = op.per_block.find(block);
      series.values.push_back(
          found == op.per_block.end() ? 0 : found->second / unit.bytes);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// `all`: the bytes of all ops.
HtmlTable SavedTable(SavedBytes saved, double all) {
  std::stable_sort(saved.ops.begin(), saved.ops.end(),
                   [](const SavedBytes::Op& a, const SavedBytes::Op& b) {
                     return a.bytes > b.bytes;
                   });
  HtmlTable table{.title = "Saved for backward, summed over the blocks",
                  .columns = {"op", "bytes", "share", "blocks"}};
  for (const SavedBytes::Op& op : saved.ops) {
    if (table.rows.size() == kMostSavedRows) break;
    const double share = all > 0 ? op.bytes / all : 0;
    table.rows.push_back(
        {{op.name},
         {Bytes(op.bytes)},
         {FormatShare(share), share},
         {IsBlock(op.name) ? absl::StrCat(op.per_block.size()) : ""}});
  }
  table.rows.push_back({{"all", std::nullopt, true},
                        {Bytes(all), std::nullopt, true},
                        {""},
                        {""}});
  return table;
}

void AddSaved(const Json& record, HtmlSection* section) {
  const Json& of = ObjectAt(record, "saved.of");
  if (of.empty()) return;
  SavedBytes saved = ReadSaved(of);
  section->charts.push_back(SavedChart(saved));
  section->tables.push_back(
      SavedTable(std::move(saved), BytesAt(record, "saved.bytes")));
}

HtmlTable LargestTable(const Json& allocations) {
  HtmlTable table{.title = "Largest allocations of the step",
                  .columns = {"allocated by", "freed in", "category", "bytes",
                              "lifetime, ms"},
                  .text_columns = 3};
  for (const Json& allocation : allocations) {
    const std::string to = TextAt(allocation, "to");
    table.rows.push_back(
        {{TextAt(allocation, "from")},
         {to.empty() ? "after the step" : to},
         {Words(TextAt(allocation, "category"))},
         {Bytes(NumberAt(allocation, "bytes"))},
         {to.empty() ? "n/a" : FormatFigure(NumberAt(allocation, "ms"))}});
  }
  return table;
}

// "+12.00 MiB".
std::string Change(double a, double b) {
  return a == b ? "0 B" : absl::StrCat(b > a ? "+" : "", Bytes(b - a));
}

void AddComparedRow(const std::string& name, bool is_sum, double a, double b,
                    HtmlTable* table) {
  table->rows.push_back({{name, std::nullopt, is_sum},
                         {Bytes(a), std::nullopt, is_sum},
                         {Bytes(b), std::nullopt, is_sum},
                         {Change(a, b), std::nullopt, is_sum}});
}

}  // namespace

HtmlSection MemorySection(const RunRecords& run) {
  HtmlSection section{.title = "Memory"};
  if (!run.memory.empty()) {
    const Json& record = run.memory.back();
    const std::string op = TextAt(record, "peak.in");
    section.paragraphs.push_back(absl::StrCat(
        "Most is allocated ",
        op.empty() ? "when the step begins" : absl::StrCat("in ", op), ": ",
        Bytes(BytesAt(record, "peak.allocated")), ". Tables are of step ",
        FormatWhole(NumberAt(record, "step")),
        ". Activations that lie in the gradient buffer while it is idle count "
        "as "
        "gradients, and not as saved for backward."));
    AddTimeline(run.memory, &section);
    HtmlTable phases = PhaseTable(record);
    if (!phases.rows.empty()) section.tables.push_back(std::move(phases));
    section.tables.push_back(CategoryTable(record));
    AddSaved(record, &section);
    if (const Json& largest = ListAt(record, "largest"); !largest.empty()) {
      section.tables.push_back(LargestTable(largest));
    }
  }
  AddCurves({}, {{"peak_gib", &run.steps}}, &section);
  return section;
}

HtmlSection MemoryComparison(const RunRecords& a, const RunRecords& b) {
  HtmlSection section{.title = "Memory"};
  if (a.memory.empty() || b.memory.empty()) return section;
  const Json &in_a = a.memory.back(), &in_b = b.memory.back();
  HtmlTable categories{.title = "At the peak of a step, by category",
                       .columns = {"category", "A", "B", "B - A"}};
  for (const BreakdownLine& line : BreakdownLines()) {
    const std::string path = absl::StrCat("peak.", line.figure);
    const double bytes_a = BytesAt(in_a, path), bytes_b = BytesAt(in_b, path);
    if (bytes_a == 0 && bytes_b == 0) continue;
    AddComparedRow(line.name, line.is_sum, bytes_a, bytes_b, &categories);
  }
  AddComparedRow("saved for backward", false, BytesAt(in_a, "saved.bytes"),
                 BytesAt(in_b, "saved.bytes"), &categories);
  section.tables.push_back(std::move(categories));
  HtmlTable phases{.title = "Peak of each phase",
                   .columns = {"phase", "A", "B", "B - A"}};
  for (const auto& [name, phase] : ObjectAt(in_a, "phases").items()) {
    const auto peak_b = NumberAt(in_b, absl::StrCat("phases.", name, ".peak"));
    if (!peak_b.has_value()) continue;
    AddComparedRow(name, false, BytesAt(phase, "peak"), *peak_b, &phases);
  }
  if (!phases.rows.empty()) section.tables.push_back(std::move(phases));
  return section;
}

}  // namespace tessera
