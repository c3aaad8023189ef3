#include "framework/observe/report/run_charts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
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

// Gives `chart`, whose values are in GiB, the unit that fits the last ones.
void FitUnit(Chart* chart) {
  double most = 0;
  for (const ChartSeries& series : chart->series) {
    most = std::max(most, *series.points.back().y * kGibibyte);
  }
  const ByteUnit unit = ByteUnitFor(most);
  chart->y_title = unit.name;
  for (ChartSeries& series : chart->series) {
    for (ChartPoint& point : series.points) *point.y *= kGibibyte / unit.bytes;
  }
}

int64_t StepOf(const Json& record) {
  return static_cast<int64_t>(NumberAt(record, "step").value_or(0));
}

// The outermost phases that belong to a step, in their order, over all records.
std::vector<std::string> StepPhases(const std::vector<Json>& steps) {
  std::vector<std::string> names;
  for (const Json& record : steps) {
    for (const auto& [path, ms] : ObjectAt(record, "phases_ms").items()) {
      if (!absl::StrContains(path, '/') && IsOfStep(path) &&
          !absl::c_linear_search(names, path)) {
        names.push_back(path);
      }
    }
  }
  return names;
}

}  // namespace

Chart BitsPerByteChart() {
  return {
      .title = "Loss per byte of text", .y_title = "bits", .from_zero = false};
}

std::vector<Curve> EvaluationCurves(absl::string_view figure,
                                    const RunRecords& run,
                                    absl::string_view prefix) {
  std::vector<Curve> curves = {
      {figure, &run.evaluations, absl::StrCat(prefix, "validation")}};
  for (const auto& [name, records] : run.validation_sets) {
    curves.push_back({figure, &records, absl::StrCat(prefix, name)});
  }
  return curves;
}

const StepField* FindStepField(absl::string_view path) {
  const bool of_gpu = absl::ConsumePrefix(&path, "gpu.");
  for (const StepField& field :
       of_gpu ? absl::MakeConstSpan(kGpuFields) : kStepFields) {
    if (field.name == path) return &field;
  }
  return nullptr;
}

void AddCurves(Chart chart, const std::vector<Curve>& curves,
               HtmlSection* section) {
  chart.x_title = "step";
  for (Curve curve : curves) {
    double scale = 1;
    if (const StepField* const field = FindStepField(curve.figure)) {
      scale = field->scale;
      if (curve.name.empty()) curve.name = field->title;
      if (chart.y_title.empty()) chart.y_title = field->unit;
      if (chart.title.empty()) {
        chart.title = field->title;
        chart.title[0] = absl::ascii_toupper(chart.title[0]);
      }
    }
    ChartSeries series{.name = curve.name};
    for (const Json& record : *curve.records) {
      const std::optional<double> y = NumberAt(record, curve.figure);
      if (!y.has_value()) continue;
      series.points.push_back({*NumberAt(record, "step"), *y * scale});
    }
    if (series.points.empty()) continue;
    series.points = ThinPoints(series.points);
    chart.series.push_back(std::move(series));
  }
  if (chart.y_title == "GiB") FitUnit(&chart);
  if (!chart.series.empty()) section->charts.push_back(std::move(chart));
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
  for (auto record = run.steps.rbegin(); record != run.steps.rend(); ++record) {
    Chart chart{.kind = Chart::Kind::kBars,
                .title = absl::StrCat("Blocks at step ", StepOf(*record)),
                .x_title = "block",
                .y_title = "ms"};
    std::vector<std::string> blocks;
    std::map<std::string, std::map<std::string, double>> times;  // of a series
    for (const auto& [path, ms] : ObjectAt(*record, "phases_ms").items()) {
      // "forward/block_3/attention"
      const std::vector<std::string> parts = absl::StrSplit(path, '/');
      if (parts.size() != 3 || !IsBlock(parts[1]) || !ms.is_number()) continue;
      const std::string series = absl::StrCat(parts[0], ", ", parts[2]);
      if (times.count(series) == 0) chart.series.push_back({series});
      times[series][parts[1]] += ms.get<double>();
      if (!absl::c_linear_search(blocks, parts[1])) {
        blocks.push_back(parts[1]);
        chart.categories.emplace_back(BlockLabel(parts[1]));
      }
    }
    if (blocks.empty()) continue;
    for (ChartSeries& series : chart.series) {
      for (const std::string& block : blocks) {
        series.values.push_back(times[series.name][block]);
      }
    }
    section->charts.push_back(std::move(chart));
    return;
  }
}

}  // namespace tessera
