#include "framework/observe/report/op_roofline.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "framework/observe/block_path.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

FoldedOp OpOf(const Json& row) {
  return {.phase = TextAt(row, "phase"),
          .part = FoldBlocks(TextAt(row, "part")),
          .op = TextAt(row, "op"),
          .ms = NumberAt(row, "ms").value_or(0),
          .share = NumberAt(row, "share").value_or(0),
          .flops = NumberAt(row, "flops").value_or(0),
          .bytes = NumberAt(row, "bytes").value_or(0),
          .roofline_ms = NumberAt(row, "roofline_ms")};
}

void AddTo(const FoldedOp& op, FoldedOp* sum) {
  sum->ms += op.ms;
  sum->share += op.share;
  sum->flops += op.flops;
  sum->bytes += op.bytes;
  if (sum->roofline_ms.has_value() && op.roofline_ms.has_value()) {
    *sum->roofline_ms += *op.roofline_ms;
  } else {
    sum->roofline_ms.reset();
  }
}

ChartSeries RoofSeries(double tflop_per_s, double tb_per_s, double least,
                       double most) {
  ChartSeries series{.name = "roof", .is_limit = true};
  const double ridge = tflop_per_s / tb_per_s;
  std::vector<double> intensities = {least, most};
  if (least < ridge && ridge < most) {
    intensities.insert(intensities.begin() + 1, ridge);
  }
  for (const double x : intensities) {
    series.points.push_back({x, std::min(tflop_per_s, x * tb_per_s), "roof"});
  }
  return series;
}

}  // namespace

std::string FoldedOp::Name() const {
  return absl::StrCat(phase, part.empty() ? "" : "/", part,
                      op.empty() ? "" : "/", op);
}

std::optional<double> FoldedOp::tflop_per_s() const {
  if (flops <= 0 || ms <= 0) return std::nullopt;
  return flops / ms * 1e-9;
}

std::optional<double> FoldedOp::gb_per_s() const {
  if (bytes <= 0 || ms <= 0) return std::nullopt;
  return bytes / ms * 1e-6;
}

std::vector<FoldedOp> FoldOps(const Json& ops) {
  std::vector<FoldedOp> folded;
  std::map<std::string, size_t> places;
  for (const Json& row : ops) {
    FoldedOp op = OpOf(row);
    const auto [place, is_new] = places.emplace(op.Name(), folded.size());
    if (is_new) {
      folded.push_back(std::move(op));
    } else {
      AddTo(op, &folded[place->second]);
    }
  }
  std::stable_sort(
      folded.begin(), folded.end(),
      [](const FoldedOp& a, const FoldedOp& b) { return a.ms > b.ms; });
  return folded;
}

std::vector<FoldedOp> CountedKernels(const Json& kernels) {
  std::vector<FoldedOp> counted;
  for (const Json& kernel : kernels) {
    const auto flop_per_byte = NumberAt(kernel, "flop_per_dram_byte");
    if (!flop_per_byte.has_value()) continue;
    const double flops = NumberAt(kernel, "flops").value_or(0);
    counted.push_back({.phase = "kernels, by DRAM bytes",
                       .op = TextAt(kernel, "name"),
                       .ms = NumberAt(kernel, "ms").value_or(0),
                       .flops = flops,
                       .bytes = flops / *flop_per_byte});
  }
  return counted;
}

std::optional<Chart> RooflineChart(const std::vector<FoldedOp>& ops,
                                   const Json& rates) {
  Chart chart{.kind = Chart::Kind::kScatter,
              .title = "Roofline of the ops",
              .x_title = "FLOP per byte that must move",
              .y_title = "TFLOP/s",
              .log_x = true,
              .log_y = true};
  std::map<std::string, size_t> places;
  double least = 0, most = 0;
  for (const FoldedOp& op : ops) {
    const std::optional<double> speed = op.tflop_per_s();
    if (!speed.has_value() || op.bytes <= 0) continue;
    const auto [place, is_new] = places.emplace(op.phase, chart.series.size());
    if (is_new) chart.series.push_back({op.phase});
    const double x = op.flops / op.bytes;
    chart.series[place->second].points.push_back({x, *speed, op.Name()});
    least = least == 0 ? x : std::min(least, x);
    most = std::max(most, x);
  }
  if (chart.series.empty()) return std::nullopt;
  const double tflop_per_s = NumberAt(rates, "product_tflop_per_s").value_or(0);
  const double tb_per_s = NumberAt(rates, "gb_per_s").value_or(0) * 1e-3;
  if (tflop_per_s > 0 && tb_per_s > 0) {
    chart.series.push_back(
        RoofSeries(tflop_per_s, tb_per_s, least / 2, most * 2));
  }
  return chart;
}

HtmlTable OpTable(const std::vector<FoldedOp>& ops, size_t most) {
  HtmlTable table{.title = "Ops, summed over the blocks",
                  .columns = {"op", "share", "ms per step", "TFLOP/s", "GB/s",
                              "of roofline"}};
  const double longest = ops.empty() ? 0 : ops.front().share;
  for (const FoldedOp& op : ops) {
    if (table.rows.size() == most) break;
    std::optional<double> of_roofline;
    if (op.roofline_ms.has_value() && op.ms > 0) {
      of_roofline = *op.roofline_ms / op.ms;
    }
    table.rows.push_back(
        {{op.Name()},
         {FormatShare(op.share), longest > 0 ? op.share / longest : 0},
         {FormatFigure(op.ms)},
         {FormatFigure(op.tflop_per_s())},
         {FormatFigure(op.gb_per_s())},
         {FormatShare(of_roofline)}});
  }
  return table;
}

}  // namespace tessera
