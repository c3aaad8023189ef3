#include "framework/observe/report/profile_sections.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "framework/base/statistics.h"
#include "framework/observe/block_path.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/op_roofline.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRows = 20;
constexpr size_t kMostPathRows = 10;

// Adds the totals at `path` as bars.
void AddTotals(const std::string& title, const Json& totals, Chart::Kind kind,
               HtmlSection* section) {
  if (totals.empty()) return;
  const bool horizontal = kind == Chart::Kind::kHorizontalBars;
  Chart chart{.kind = kind,
              .title = title,
              .x_title = horizontal ? "ms per step" : "block",
              .y_title = horizontal ? "" : "ms per step"};
  chart.series.push_back({"time"});
  for (const Json& total : totals) {
    chart.categories.emplace_back(BlockLabel(TextAt(total, "name")));
    chart.series[0].values.push_back(NumberAt(total, "ms").value_or(0));
  }
  section->charts.push_back(std::move(chart));
}

bool HasPositive(const ChartSeries& series) {
  return std::any_of(series.values.begin(), series.values.end(),
                     [](double value) { return value > 0; });
}

void AddAttention(const Json& attention, HtmlSection* section) {
  if (attention.empty()) return;
  Chart chart{.kind = Chart::Kind::kHorizontalBars,
              .title = "Attention",
              .x_title = "ms per step"};
  for (const char* part : {"scores", "softmax", "values", "other"}) {
    ChartSeries series{.name = part};
    for (const Json& row : attention) {
      series.values.push_back(
          NumberAt(row, absl::StrCat(part, "_ms")).value_or(0));
    }
    if (HasPositive(series)) chart.series.push_back(std::move(series));
  }
  for (const Json& row : attention) {
    chart.categories.push_back(TextAt(row, "phase"));
  }
  section->charts.push_back(std::move(chart));
}

HtmlTable KernelTable(const Json& kernels) {
  HtmlTable table{.columns = {"kernel", "class", "share", "ms per step",
                              "instances per step", "mean, µs", "TFLOP/s",
                              "GB/s", "of peak"},
                  .text_columns = 2};
  double longest = 0;
  for (const Json& kernel : kernels) {
    if (table.rows.size() == kMostRows) break;
    const double share = NumberAt(kernel, "share").value_or(0);
    longest = std::max(longest, share);
    table.rows.push_back({{TextAt(kernel, "name")},
                          {TextAt(kernel, "class")},
                          {FormatShare(share), share / std::max(longest, 1e-9)},
                          {FormatFigure(NumberAt(kernel, "ms"))},
                          {FormatWhole(NumberAt(kernel, "instances"))},
                          {FormatFigure(NumberAt(kernel, "mean_us"))},
                          {FormatFigure(NumberAt(kernel, "tflop_per_s"))},
                          {FormatFigure(NumberAt(kernel, "gb_per_s"))},
                          {FormatShare(NumberAt(kernel, "roofline_share"))}});
  }
  return table;
}

// The counters of the kernels that have some.
HtmlTable CounterTable(const Json& kernels) {
  HtmlTable table{.title = "Counters, top ten kernels",
                  .columns = {"kernel", "tensor pipe, %", "DRAM MB per run",
                              "DRAM GB/s", "L2 hits, %", "FLOP per DRAM byte"}};
  for (const Json& kernel : kernels) {
    if (!kernel.contains("dram_bytes")) continue;
    const auto bytes = NumberAt(kernel, "dram_bytes");
    const auto mean_us = NumberAt(kernel, "mean_us");
    std::optional<double> mb, gb_per_s;
    if (bytes.has_value()) mb = *bytes * 1e-6;
    if (bytes.has_value() && mean_us.value_or(0) > 0) {
      gb_per_s = *bytes / *mean_us * 1e-3;
    }
    table.rows.push_back(
        {{TextAt(kernel, "name")},
         {FormatFigure(NumberAt(kernel, "tensor_pipe_pct"))},
         {FormatFigure(mb)},
         {FormatFigure(gb_per_s)},
         {FormatFigure(NumberAt(kernel, "l2_hit_pct"))},
         {FormatFigure(NumberAt(kernel, "flop_per_dram_byte"))}});
  }
  return table;
}

// What observe.trace.kernel_counters found, if it was on.
void AddCounters(const Json& step, HtmlSection* section) {
  const Json& counters = ObjectAt(step, "counters");
  if (counters.empty()) return;
  if (counters.contains("not_counted")) {
    section->paragraphs.push_back(
        absl::StrCat("Counters: none: ", TextAt(counters, "not_counted")));
    return;
  }
  section->paragraphs.push_back(absl::StrCat(
      "Counters are means over the runs of a kernel in step ",
      FormatWhole(NumberAt(counters, "step")),
      ". Tensor pipe: of the peak, while the kernel ran. DRAM: bytes that "
      "moved, against the kernel's time in the trace. L2 hits: of requests."));
  section->tables.push_back(CounterTable(ListAt(step, "kernels")));
}

HtmlSection KernelsSection(const Json& step) {
  HtmlSection section{.title = "Kernels",
                      .tables = {KernelTable(ListAt(step, "kernels"))}};
  const auto tflop_per_s = NumberAt(step, "rates.product_tflop_per_s");
  const auto gb_per_s = NumberAt(step, "rates.gb_per_s");
  section.paragraphs.push_back(absl::StrCat(
      "Speeds count the work of the op that a kernel computes: its FLOPs, and "
      "each operand read and each result written once. They are n/a if several "
      "kernels share that work. Of peak: the larger share, of FLOP/s or of "
      "GB/s; ",
      tflop_per_s.has_value() && gb_per_s.has_value()
          ? absl::StrCat("the device's peaks are ", FormatFigure(tflop_per_s),
                         " TFLOP/s in matrix products and ",
                         FormatFigure(gb_per_s), " GB/s.")
          : "the device's peaks are not known."));
  AddCounters(step, &section);
  return section;
}

// Fewer records show no spread (figure_comparison.h).
constexpr size_t kFewestRecords = 3;

// How long steps took before, in or after a trace.
struct StepTime {
  const char* name;
  std::optional<double> ms;
  std::string measured_over;  // "5 records"
  bool too_few = false;       // to say what the trace cost
  bool spread_out = false;
};

StepTime StepTimeOf(const char* name, const std::vector<double>& ms) {
  return {.name = name,
          .ms = Median(ms),
          .measured_over = FormatCountOf(ms.size(), "record"),
          .too_few = ms.size() < kFewestRecords,
          .spread_out = IsSpreadOut(ms)};
}

// How long steps took before, in and after the trace, against what came before
// it or, if that has too few records, after it. Empty without steps outside of
// the trace, or if the log does not say which were traced.
HtmlTable TraceCostTable(const RunRecords& run, const Json& step) {
  std::vector<Json> before, after;
  bool traced = false;
  for (const Json& record : run.steps) {
    const auto traced_steps = NumberAt(record, "traced_steps");
    // Kernels may have been counted in a step before the trace.
    traced = traced || (traced_steps.value_or(0) > 0 &&
                        NumberAt(record, "step") >= run.profile_first_step);
    if (traced_steps == 0) (traced ? after : before).push_back(record);
  }
  const int64_t steps =
      static_cast<int64_t>(NumberAt(step, "steps").value_or(0));
  const std::vector<StepTime> times = {
      StepTimeOf("before the trace", NumbersAt(LastHalf(before), "step_ms")),
      {.name = "traced",
       .ms = NumberAt(step, "wall_ms"),
       .measured_over = FormatCountOf(steps, "step"),
       .too_few = steps < 2},
      StepTimeOf("after the trace", NumbersAt(after, "step_ms"))};
  const StepTime& base = times[times[0].too_few ? 2 : 0];
  HtmlTable table{
      .title = "What the trace cost",
      .columns = {"steps", "ms per step", absl::StrCat("against ", base.name),
                  "measured over"}};
  for (const StepTime& time : times) {
    if (!time.ms.has_value()) continue;
    std::string change;
    if (time.too_few || base.too_few) {
      change = "too few";
    } else if (&time != &base) {
      change = absl::StrFormat("%+.1f %%", 100 * (*time.ms / *base.ms - 1));
    }
    table.rows.push_back(
        {{time.name},
         {absl::StrCat(FormatFigure(time.ms), SpreadMark(time.spread_out))},
         {std::move(change)},
         {time.measured_over}});
  }
  if (table.rows.size() < 2) table.rows.clear();
  NoteSpread(&table);
  return table;
}

HtmlSection TotalsSection(const RunRecords& run, const Json& step) {
  const std::string& name = run.profile_name;
  HtmlSection section{
      .title = absl::StrCat("Traced steps",
                            name.empty() ? "" : absl::StrCat(": ", name))};
  const auto add = [&](const char* title, const char* path, const char* unit) {
    if (const auto value = NumberAt(step, path)) {
      section.headlines.push_back(
          {title, absl::StrCat(FormatWhole(value), unit)});
    }
  };
  add("steps", "steps", "");
  add("wall time per step", "wall_ms", " ms");
  add("device busy per step", "busy_ms", " ms");
  add("activities per step", "activities", "");
  if (const auto share = NumberAt(step, "gemm_share")) {
    section.headlines.push_back({"in GEMMs", FormatShare(share)});
  }
  if (const double dropped = NumberAt(step, "dropped").value_or(0);
      dropped > 0) {
    section.paragraphs.push_back(
        absl::StrCat("Incomplete: ", FormatWhole(dropped),
                     " records did not fit into the trace."));
  }
  AddTotals("By class of kernel", ListAt(step, "classes"),
            Chart::Kind::kHorizontalBars, &section);
  AddTotals("By phase", ListAt(step, "phases"), Chart::Kind::kHorizontalBars,
            &section);
  AddTotals("By block", ListAt(step, "blocks"), Chart::Kind::kBars, &section);
  AddAttention(ListAt(step, "attention"), &section);
  if (HtmlTable cost = TraceCostTable(run, step); !cost.rows.empty()) {
    section.tables.push_back(std::move(cost));
  }
  return section;
}

// The parts of a time, which add up to the whole: keys of an object of
// IdleTimeToJson().
constexpr std::pair<const char*, const char*> kBudget[] = {
    {"compute", "compute_ms"},
    {"communication", "communication_ms"},
    {"busy", "busy_ms"},
    {"host wait", "host_wait_ms"},
    {"kernel wait", "kernel_wait_ms"},
    {"other idle", "other_ms"}};

Chart BudgetChart(const Json& idle) {
  Chart chart{.kind = Chart::Kind::kHorizontalBars,
              .title = "Device and streams over the traced steps",
              .x_title = "ms"};
  std::vector<const Json*> rows;
  if (const Json* const device = FigureAt(idle, "device")) {
    rows.push_back(device);
    chart.categories.push_back("device");
  }
  for (const Json& stream : ListAt(idle, "streams")) {
    rows.push_back(&stream);
    chart.categories.push_back(
        absl::StrCat("stream ", FormatWhole(NumberAt(stream, "device")), ":",
                     FormatWhole(NumberAt(stream, "stream"))));
  }
  for (const auto& [name, key] : kBudget) {
    ChartSeries series{.name = name};
    for (const Json* row : rows) {
      series.values.push_back(NumberAt(*row, key).value_or(0));
    }
    if (HasPositive(series)) chart.series.push_back(std::move(series));
  }
  return chart;
}

HtmlTable GapTable(const Json& gaps) {
  HtmlTable table{.title = "Longest gaps",
                  .columns = {"ended by", "issued in", "class", "µs"},
                  .text_columns = 3};
  for (const Json& gap : gaps) {
    table.rows.push_back({{TextAt(gap, "ended_by")},
                          {TextAt(gap, "path")},
                          {TextAt(gap, "class")},
                          {FormatFigure(NumberAt(gap, "us"))}});
  }
  return table;
}

HtmlSection IdleSection(const Json& idle) {
  HtmlSection section{.title = "Idle time"};
  section.paragraphs.push_back(TextAt(idle, "summary"));
  if (const Json& launches = ObjectAt(idle, "launches"); !launches.empty()) {
    const auto add = [&](const char* name, const char* path) {
      section.headlines.push_back(
          {name, FormatWhole(NumberAt(launches, path))});
    };
    add("launches", "count");
    add("kernels shorter than their launch", "shorter_than_launch");
    add("launch to begin, mean µs", "mean_delay_us");
    add("mean queue depth", "mean_queue");
  }
  Chart budget = BudgetChart(idle);
  if (!budget.series.empty()) section.charts.push_back(std::move(budget));
  const Json& gaps = ListAt(idle, "longest_gaps");
  if (!gaps.empty()) section.tables.push_back(GapTable(gaps));
  return section;
}

HtmlSection CriticalPathSection(const Json& path) {
  HtmlSection section{.title = "Critical path"};
  section.paragraphs.push_back(
      absl::StrCat("The chain of waits that makes a step take ",
                   FormatFigure(NumberAt(path, "ms")),
                   " ms. Work that is not on it can become faster without "
                   "making the step faster."));
  HtmlTable table{.columns = {"what", "kind", "share", "ms per step", "pieces"},
                  .text_columns = 2};
  const double whole = NumberAt(path, "ms").value_or(0);
  for (const Json& time : ListAt(path, "times")) {
    if (table.rows.size() == kMostPathRows) break;
    const double ms = NumberAt(time, "ms").value_or(0);
    const double share = whole > 0 ? ms / whole : 0;
    table.rows.push_back({{TextAt(time, "name")},
                          {TextAt(time, "kind")},
                          {FormatShare(share), share},
                          {FormatFigure(ms)},
                          {FormatWhole(NumberAt(time, "pieces"))}});
  }
  section.tables.push_back(std::move(table));
  return section;
}

}  // namespace

std::vector<HtmlSection> ProfileSections(const RunRecords& run) {
  std::vector<HtmlSection> sections;
  if (const Json* const step = FigureAt(run.profile, "step")) {
    sections.push_back(TotalsSection(run, *step));
    if (!ListAt(*step, "kernels").empty()) {
      sections.push_back(KernelsSection(*step));
    }
    const std::vector<FoldedOp> ops = FoldOps(ListAt(*step, "ops"));
    if (!ops.empty()) {
      std::vector<FoldedOp> points = CountedKernels(ListAt(*step, "kernels"));
      points.insert(points.begin(), ops.begin(), ops.end());
      HtmlSection section{.title = "Ops"};
      const Json* const rates = FigureAt(*step, "rates");
      if (std::optional<Chart> roofline =
              RooflineChart(points, rates != nullptr ? *rates : Json())) {
        section.charts.push_back(*std::move(roofline));
      }
      section.tables.push_back(OpTable(ops, kMostRows));
      sections.push_back(std::move(section));
    }
  }
  if (const Json* const idle = FigureAt(run.profile, "idle")) {
    sections.push_back(IdleSection(*idle));
  }
  if (const Json* const path = FigureAt(run.profile, "critical_path")) {
    sections.push_back(CriticalPathSection(*path));
  }
  return sections;
}

}  // namespace tessera
