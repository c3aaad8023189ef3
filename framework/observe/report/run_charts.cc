#include "framework/observe/report/run_charts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/observe/block_path.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBars = 60;

// What happens between steps is timed per occurrence, not per step.
bool IsOfStep(absl::string_view phase) {
  return phase != "evaluation" && phase != "checkpoint";
}

// "attention" of "forward/block_3/attention", with its block and phase.
struct BlockPhase {
  std::string block, series;
  double ms = 0;
};

std::vector<BlockPhase> BlockPhasesOf(const Json& record) {
  std::vector<BlockPhase> times;
  const Json* const phases = FigureAt(record, "phases_ms");
  if (phases == nullptr || !phases->is_object()) return times;
  for (const auto& [path, ms] : phases->items()) {
    const std::vector<std::string> parts = absl::StrSplit(path, '/');
    if (parts.size() != 3 || !IsBlock(parts[1]) || !ms.is_number()) {
      continue;
    }
    times.push_back(
        {parts[1], absl::StrCat(parts[0], ", ", parts[2]), ms.get<double>()});
  }
  return times;
}

int64_t StepOf(const Json& record) {
  return static_cast<int64_t>(NumberAt(record, "step").value_or(0));
}

}  // namespace

void AddCurves(Chart chart, const std::vector<Curve>& curves,
               HtmlSection* section) {
  chart.x_title = "step";
  for (const Curve& curve : curves) {
    ChartSeries series{.name = curve.name};
    for (const Json& record : *curve.records) {
      const std::optional<double> y = NumberAt(record, curve.figure);
      if (!y.has_value()) continue;
      series.points.push_back({*NumberAt(record, "step"), *y * curve.scale});
    }
    if (series.points.empty()) continue;
    series.points = ThinPoints(series.points);
    chart.series.push_back(std::move(series));
  }
  if (!chart.series.empty()) section->charts.push_back(std::move(chart));
}

void AddPeakMemory(std::vector<Curve> curves, HtmlSection* section) {
  constexpr double kGiB = 1 << 30;
  double most = 0;
  for (Curve& curve : curves) {
    curve.figure = "peak_gib";
    for (const double gib : NumbersAt(*curve.records, curve.figure)) {
      most = std::max(most, gib * kGiB);
    }
  }
  const ByteUnit unit = ByteUnitFor(most);
  for (Curve& curve : curves) curve.scale = kGiB / unit.bytes;
  AddCurves({.title = "Peak of allocated memory so far", .y_title = unit.name},
            curves, section);
}

std::vector<std::string> StepPhases(const std::vector<Json>& steps) {
  std::vector<std::string> names;
  for (const Json& record : steps) {
    const Json* const phases = FigureAt(record, "phases_ms");
    if (phases == nullptr || !phases->is_object()) continue;
    for (const auto& [path, ms] : phases->items()) {
      if (!absl::StrContains(path, '/') && IsOfStep(path) &&
          !absl::c_linear_search(names, path)) {
        names.push_back(path);
      }
    }
  }
  return names;
}

void AddPhaseStack(const RunRecords& run, HtmlSection* section) {
  const std::vector<std::string> phases = StepPhases(run.steps);
  if (phases.empty()) return;
  // The first record holds the first step, in which kernels are loaded: beside
  // it the other bars would be flat.
  const size_t first = run.steps.size() > 2 ? 1 : 0;
  const size_t count = run.steps.size() - first;
  const size_t bars = std::min(kMostBars, count);
  Chart chart{.kind = Chart::Kind::kBars,
              .title = "Step time by phase",
              .x_title = "step",
              .y_title = "ms"};
  for (const std::string& phase : phases) chart.series.push_back({phase});
  chart.series.push_back({"not in a phase"});
  for (size_t bar = 0; bar < bars; ++bar) {
    const std::vector<Json> records(
        run.steps.begin() + first + bar * count / bars,
        run.steps.begin() + first + (bar + 1) * count / bars);
    chart.categories.push_back(absl::StrCat(StepOf(records.back())));
    const auto mean = [&](absl::string_view path) {
      double sum = 0;
      for (const double value : NumbersAt(records, path)) sum += value;
      return sum / static_cast<double>(records.size());
    };
    double rest = mean("step_ms");
    for (size_t i = 0; i < phases.size(); ++i) {
      const double ms = mean(absl::StrCat("phases_ms.", phases[i]));
      chart.series[i].values.push_back(ms);
      rest -= ms;
    }
    chart.series.back().values.push_back(std::max(rest, 0.0));
  }
  section->charts.push_back(std::move(chart));
}

void AddBlockPhases(const RunRecords& run, HtmlSection* section) {
  std::vector<BlockPhase> times;
  int64_t step = 0;
  for (auto record = run.steps.rbegin();
       record != run.steps.rend() && times.empty(); ++record) {
    times = BlockPhasesOf(*record);
    step = StepOf(*record);
  }
  if (times.empty()) return;
  Chart chart{.kind = Chart::Kind::kBars,
              .title = absl::StrCat("Blocks at step ", step),
              .x_title = "block",
              .y_title = "ms"};
  std::map<std::string, std::map<std::string, double>> ms;  // series, block
  std::vector<std::string> blocks;
  for (const BlockPhase& time : times) {
    if (ms.count(time.series) == 0) chart.series.push_back({time.series});
    ms[time.series][time.block] += time.ms;
    if (!absl::c_linear_search(blocks, time.block)) {
      blocks.push_back(time.block);
      chart.categories.emplace_back(BlockLabel(time.block));
    }
  }
  for (ChartSeries& series : chart.series) {
    for (const std::string& block : blocks) {
      series.values.push_back(ms[series.name][block]);
    }
  }
  section->charts.push_back(std::move(chart));
}

}  // namespace tessera
