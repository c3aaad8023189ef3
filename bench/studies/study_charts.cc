#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/studies/study_tables.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/memory_timeline.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostLines = 8;  // that colors can tell apart

// Adds the axes that a plot over an axis leaves out to its series: else several
// cells would be one point.
StudyPlot WithAllAxes(const Study& study, StudyPlot plot) {
  if (!plot.x_title().empty()) return plot;
  for (const StudyAxis& axis : study.config.axis()) {
    const bool varies = absl::c_any_of(study.cells, [&](const StudyCell& cell) {
      return cell.Label(axis.name()) != study.cells[0].Label(axis.name());
    });
    if (varies && axis.name() != plot.x() &&
        !absl::c_linear_search(plot.series(), axis.name())) {
      plot.add_series(axis.name());
    }
  }
  return plot;
}

// The first axes of the plot's series whose combinations are at most
// kMostLines, at least one axis if there is one.
int AxesOfLines(const Study& study, const StudyPlot& plot) {
  std::set<std::string> lines;
  for (int axes = 1; axes <= plot.series_size(); ++axes) {
    lines.clear();
    for (const StudyCell& cell : study.cells) {
      std::string line;
      for (int i = 0; i < axes; ++i) {
        absl::StrAppend(&line, cell.Label(plot.series(i)), "\n");
      }
      lines.insert(line);
    }
    if (lines.size() > kMostLines) return axes == 1 ? 1 : axes - 1;
  }
  return plot.series_size();
}

bool HasOnlyNumbers(const Study& study, const std::string& axis) {
  return absl::c_all_of(study.cells, [&](const StudyCell& cell) {
    double number = 0;
    return absl::SimpleAtod(cell.Label(axis), &number);
  });
}

class PlotWriter {
 public:
  PlotWriter(const Study& study, const CellRecords& records,
             const StudyPlot& plot)
      : records_(records),
        plot_(WithAllAxes(study, plot)),
        axes_of_lines_(AxesOfLines(study, plot_)),
        scatter_(!plot.list().empty() || !plot.x_title().empty()),
        categories_(!scatter_ && !HasOnlyNumbers(study, plot.x())) {
    for (const StudyCell& cell : study.cells) Add(cell);
  }

  std::vector<Chart> Take() {
    for (Chart& chart : charts_) {
      for (ChartSeries& series : chart.series) {
        absl::c_stable_sort(
            series.points,
            [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
      }
    }
    return std::move(charts_);
  }

 private:
  void Add(const StudyCell& cell) {
    const auto record = records_.find(cell.Name());
    if (record == records_.end()) return;
    if (!plot_.list().empty()) {
      AddList(cell, *record->second);
      return;
    }
    const std::optional<double> y =
        NumberAt(*record->second, absl::StrCat("figures.", plot_.y()));
    if (!y.has_value()) return;
    if (categories_) {
      AddBar(cell, *y);
      return;
    }
    const std::optional<double> x = XOf(cell, *record->second);
    if (!x.has_value()) return;
    std::vector<ChartPoint>& points = SeriesOf(cell).points;
    const bool is_new =
        scatter_ || absl::c_none_of(points, [&](const ChartPoint& point) {
          return point.x == *x;
        });
    if (is_new) points.push_back({*x, y, scatter_ ? cell.Name() : ""});
  }

  std::optional<double> XOf(const StudyCell& cell, const Json& record) const {
    if (scatter_) {
      return NumberAt(record, absl::StrCat("figures.", plot_.x()));
    }
    double x = 0;
    if (!absl::SimpleAtod(cell.Label(plot_.x()), &x)) return std::nullopt;
    return x;
  }

  void AddBar(const StudyCell& cell, double y) {
    std::vector<std::string>& categories = ChartOf(cell).categories;
    const std::string label(cell.Label(plot_.x()));
    const size_t place = absl::c_find(categories, label) - categories.begin();
    if (place == categories.size()) categories.push_back(label);
    std::vector<double>& values = SeriesOf(cell).values;
    if (values.size() <= place) values.resize(place + 1, std::nan(""));
    if (std::isnan(values[place])) values[place] = y;
  }

  void AddList(const StudyCell& cell, const Json& record) {
    std::vector<ChartPoint> points = PointsIn(record, plot_.list());
    if (points.empty()) return;
    SeriesOf(cell).points = std::move(points);
    Chart& chart = ChartOf(cell);
    const bool has_limit = absl::c_any_of(
        chart.series, [](const ChartSeries& one) { return one.is_limit; });
    std::vector<ChartPoint> limit = PointsIn(record, plot_.limit());
    if (has_limit || limit.empty()) return;
    chart.series.push_back(
        {.name = "limit", .points = std::move(limit), .is_limit = true});
  }

  std::vector<ChartPoint> PointsIn(const Json& record,
                                   const std::string& list) const {
    std::vector<ChartPoint> points;
    for (const Json& element : ListAt(record, absl::StrCat("figures.", list))) {
      const std::optional<double> x = NumberAt(element, plot_.x());
      if (!x.has_value()) continue;
      points.push_back({*x, NumberAt(element, plot_.y()),
                        TextAt(element, plot_.point_name())});
    }
    return points;
  }

  // The cell's line in the cell's chart.
  ChartSeries& SeriesOf(const StudyCell& cell) {
    std::vector<std::string> labels;
    for (int i = 0; i < axes_of_lines_; ++i) {
      labels.emplace_back(cell.Label(plot_.series(i)));
    }
    const std::string line = absl::StrJoin(labels, ", ");
    std::vector<ChartSeries>& series = ChartOf(cell).series;
    auto found = absl::c_find_if(
        series, [&](const ChartSeries& one) { return one.name == line; });
    if (found == series.end()) found = series.insert(found, {line});
    return *found;
  }

  Chart& ChartOf(const StudyCell& cell) {
    std::vector<std::string> labels;
    for (int i = axes_of_lines_; i < plot_.series_size(); ++i) {
      const std::string& axis = plot_.series(i);
      labels.push_back(absl::StrCat(axis, " ", cell.Label(axis)));
    }
    const std::string title = absl::StrCat(
        plot_.title(), labels.empty() ? "" : ": ", absl::StrJoin(labels, ", "));
    const auto [chart, is_new] = places_.emplace(title, charts_.size());
    if (is_new) {
      charts_.push_back(
          {.kind = scatter_      ? Chart::Kind::kScatter
                   : categories_ ? Chart::Kind::kGroupedBars
                                 : Chart::Kind::kLine,
           .title = title,
           .x_title = plot_.x_title().empty() ? plot_.x() : plot_.x_title(),
           .y_title = plot_.y_title(),
           .log_x = plot_.log_x(),
           .log_y = plot_.log_y()});
    }
    return charts_[chart->second];
  }

  const CellRecords& records_;
  const StudyPlot plot_;
  const int axes_of_lines_;
  const bool scatter_;     // x is a figure
  const bool categories_;  // x is an axis, and not all of it are numbers
  std::vector<Chart> charts_;
  std::map<std::string, size_t> places_;  // of charts, by title
};

// Counts the cells by y, in bins of `plot.histogram_bin()` around its
// multiples. Absent if no cell has the figure.
std::optional<Chart> Histogram(const CellRecords& records,
                               const StudyPlot& plot) {
  const double width = plot.histogram_bin();
  std::map<int64_t, int> counts;  // by the multiple in the bin's middle
  for (const auto& [name, record] : records) {
    const std::optional<double> y =
        NumberAt(*record, absl::StrCat("figures.", plot.y()));
    if (y.has_value()) ++counts[std::llround(*y / width)];
  }
  if (counts.empty()) return std::nullopt;
  Chart chart{.kind = Chart::Kind::kBars,
              .title = plot.title(),
              .x_title = plot.y_title(),
              .y_title = "cells",
              .series = {{"cells"}}};
  const int64_t first = counts.begin()->first, last = counts.rbegin()->first;
  for (int64_t bin = first; bin <= last; ++bin) {
    chart.categories.push_back(
        absl::StrFormat("%.3g", static_cast<double>(bin) * width));
    chart.series[0].values.push_back(counts[bin]);
  }
  return chart;
}

}  // namespace

std::vector<Chart> StudyCharts(const Study& study, const CellRecords& records) {
  std::vector<Chart> charts;
  for (const StudyPlot& plot : study.config.plot()) {
    if (plot.has_histogram_bin()) {
      if (std::optional<Chart> chart = Histogram(records, plot)) {
        charts.push_back(*std::move(chart));
      }
      continue;
    }
    for (Chart& chart : PlotWriter(study, records, plot).Take()) {
      charts.push_back(std::move(chart));
    }
  }
  for (const StudyCell& cell : study.cells) {
    const auto record = records.find(cell.Name());
    if (record == records.end()) continue;
    const Json& timelines = ObjectAt(*record->second, "figures.timelines");
    for (const auto& [what, timeline] : timelines.items()) {
      for (Chart& chart : MemoryTimeline(
               timeline,
               absl::StrCat("Memory during ", what, ": ", cell.Name()),
               absl::StrCat("What ", what,
                            " allocates and frees: ", cell.Name()))) {
        charts.push_back(std::move(chart));
      }
    }
  }
  return charts;
}

}  // namespace tessera
