#include "framework/observe/report/memory_timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_replace.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostTimelinePoints = 400;

struct TimelinePoint {
  double ms = 0;
  std::vector<double> bytes;  // by category
  double total = 0;
};

struct Timeline {
  std::vector<std::string> categories;
  std::vector<TimelinePoint> points;  // by time, no two at the same
};

// The point of each stretch at which most is allocated. Areas are stacked by
// their x, so points of one microsecond count as one.
void Thin(std::vector<TimelinePoint>* points) {
  const size_t stride =
      (points->size() + kMostTimelinePoints - 1) / kMostTimelinePoints;
  std::vector<TimelinePoint> kept;
  size_t in_stretch = 0;
  for (TimelinePoint& point : *points) {
    const bool same_time = !kept.empty() && point.ms <= kept.back().ms;
    if (kept.empty() || (in_stretch >= stride && !same_time)) {
      kept.push_back(std::move(point));
      in_stretch = 1;
      continue;
    }
    ++in_stretch;
    if (point.total > kept.back().total) kept.back() = std::move(point);
  }
  *points = std::move(kept);
}

Timeline TimelineOf(const Json& json) {
  Timeline timeline;
  const Json& columns = ListAt(json, "columns");
  for (size_t c = 1; c < columns.size(); ++c) {
    timeline.categories.push_back(
        columns[c].is_string() ? columns[c].get<std::string>() : "");
  }
  for (const Json& row : ListAt(json, "points")) {
    if (!row.is_array() || row.size() != columns.size()) continue;
    TimelinePoint point;
    for (size_t c = 0; c < row.size(); ++c) {
      const double value = row[c].is_number() ? row[c].get<double>() : 0;
      if (c == 0) {
        point.ms = value * 1e-3;
      } else {
        point.bytes.push_back(value);
        point.total += value;
      }
    }
    timeline.points.push_back(std::move(point));
  }
  Thin(&timeline.points);
  return timeline;
}

// Stacks what each category holds beyond `base[category]`.
Chart TimelineChart(std::string title, const Timeline& timeline,
                    const std::vector<double>& base) {
  const double base_total = absl::c_accumulate(base, 0.0);
  double most_total = 0;
  for (const TimelinePoint& point : timeline.points) {
    most_total = std::max(most_total, point.total - base_total);
  }
  const ByteUnit unit = ByteUnitFor(most_total);
  Chart chart{.kind = Chart::Kind::kArea,
              .title = std::move(title),
              .x_title = "ms since the step began, on the host",
              .y_title = unit.name};
  for (size_t c = 0; c < timeline.categories.size(); ++c) {
    ChartSeries series{
        .name = absl::StrReplaceAll(timeline.categories[c], {{"_", " "}}),
        .color = c};
    double most = 0;
    for (const TimelinePoint& point : timeline.points) {
      const double bytes = point.bytes[c] - base[c];
      most = std::max(most, bytes);
      // Enough digits for a drawing.
      series.points.push_back(
          {point.ms, std::round(bytes / unit.bytes * 1e5) / 1e5});
    }
    // Nobody sees less.
    if (most > 1e-3 * most_total) chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

std::vector<Chart> MemoryTimeline(const Json& json, std::string whole_title,
                                  std::string changes_title) {
  const Timeline timeline = TimelineOf(json);
  if (timeline.points.empty()) return {};
  std::vector<double> least = timeline.points[0].bytes;
  for (const TimelinePoint& point : timeline.points) {
    for (size_t c = 0; c < least.size(); ++c) {
      least[c] = std::min(least[c], point.bytes[c]);
    }
  }
  std::vector<Chart> charts;
  for (Chart& chart : std::vector<Chart>{
           TimelineChart(std::move(whole_title), timeline,
                         std::vector<double>(least.size())),
           TimelineChart(std::move(changes_title), timeline, least)}) {
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  }
  return charts;
}

}  // namespace tessera
