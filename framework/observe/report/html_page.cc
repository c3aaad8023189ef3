#include "framework/observe/report/html_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "framework/base/json.h"
#include "framework/observe/report/page_parts.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

const char* KindName(Chart::Kind kind) {
  constexpr const char* kNames[] = {"line", "area",    "scatter",
                                    "bars", "grouped", "horizontal"};
  return kNames[static_cast<int>(kind)];
}

Json Number(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) return nullptr;
  return *value;
}

Json SeriesToJson(const ChartSeries& series) {
  Json json = {{"name", series.name}, {"limit", series.is_limit}};
  if (series.color.has_value()) json["color"] = *series.color;
  Json points = Json::array();
  for (const ChartPoint& point : series.points) {
    Json entry = {{"x", Number(point.x)}, {"y", Number(point.y)}};
    if (!point.label.empty()) entry["label"] = point.label;
    points.push_back(std::move(entry));
  }
  json["points"] = std::move(points);
  Json values = Json::array();
  for (const double value : series.values) values.push_back(Number(value));
  json["values"] = std::move(values);
  return json;
}

Json ChartToJson(const Chart& chart) {
  Json series = Json::array();
  for (const ChartSeries& one : chart.series) {
    series.push_back(SeriesToJson(one));
  }
  return {{"kind", KindName(chart.kind)},   {"x_title", chart.x_title},
          {"y_title", chart.y_title},       {"log_x", chart.log_x},
          {"log_y", chart.log_y},           {"from_zero", chart.from_zero},
          {"categories", chart.categories}, {"series", std::move(series)}};
}

// For text and for attributes in double quotes.
std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"'", "&#39;"}});
}

// EscapeHtml(), with places to break a line in names that have no blanks:
// "block_3/ffn/w13", "void gemm<float>(int)".
std::string Breakable(absl::string_view text) {
  std::string html;
  for (size_t i = 0; i < text.size(); ++i) {
    absl::StrAppend(&html, EscapeHtml(text.substr(i, 1)));
    const absl::string_view kBreakAfter = "/_:,<(";
    const bool breaks = kBreakAfter.find(text[i]) != absl::string_view::npos;
    if (breaks && i + 1 < text.size() && text[i + 1] != text[i]) {
      absl::StrAppend(&html, "<wbr>");
    }
  }
  return html;
}

// With the characters escaped that could end the script element or begin a
// comment.
std::string JsonForScript(const Json& json) {
  return absl::StrReplaceAll(
      DumpJson(json), {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}});
}

class BodyWriter {
 public:
  explicit BodyWriter(const HtmlPage& page) {
    absl::StrAppend(&body_, "<header><h1>", EscapeHtml(page.title), "</h1>\n");
    Paragraph(page.subtitle);
    absl::StrAppend(&body_, "</header>\n");
    for (const HtmlSection& section : page.sections) Add(section);
  }

  const std::string& body() const { return body_; }
  const Json& charts() const { return charts_; }

 private:
  void Paragraph(absl::string_view text) {
    if (text.empty()) return;
    absl::StrAppend(&body_, "<p>", EscapeHtml(text), "</p>\n");
  }

  void Add(const HtmlSection& section) {
    absl::StrAppend(&body_, "<section><h2>", EscapeHtml(section.title),
                    "</h2>\n");
    for (const std::string& text : section.paragraphs) Paragraph(text);
    if (!section.headlines.empty()) {
      absl::StrAppend(&body_, "<dl>\n");
      for (const Headline& headline : section.headlines) {
        absl::StrAppend(&body_, "<div><dt>", EscapeHtml(headline.name),
                        "</dt><dd>", EscapeHtml(headline.value),
                        "</dd></div>\n");
      }
      absl::StrAppend(&body_, "</dl>\n");
    }
    Paragraph(section.headlines_note);
    if (!section.charts.empty()) {
      absl::StrAppend(&body_, "<div class=\"charts\">\n");
      for (const Chart& chart : section.charts) Add(chart);
      absl::StrAppend(&body_, "</div>\n");
    }
    for (const HtmlTable& table : section.tables) Add(table);
    if (!section.folded_text.empty()) {
      absl::StrAppend(&body_, "<details><summary>Show</summary><pre>",
                      EscapeHtml(section.folded_text), "</pre></details>\n");
    }
    absl::StrAppend(&body_, "</section>\n");
  }

  // The script finds the canvases by their order.
  void Add(const Chart& chart) {
    absl::StrAppend(&body_, "<figure><figcaption>", EscapeHtml(chart.title),
                    "</figcaption><div class=\"canvas\"><canvas role=\"img\" "
                    "aria-label=\"",
                    EscapeHtml(chart.title), "\"></canvas></div></figure>\n");
    charts_.push_back(ChartToJson(chart));
  }

  void Add(const HtmlTable& table) {
    if (!table.title.empty()) {
      absl::StrAppend(&body_, "<h3>", EscapeHtml(table.title), "</h3>\n");
    }
    absl::StrAppend(&body_, "<div class=\"table\"><table>\n<tr>");
    for (size_t i = 0; i < table.columns.size(); ++i) {
      absl::StrAppend(&body_, "<th", Class(table, i, ""), ">",
                      EscapeHtml(table.columns[i]), "</th>");
    }
    absl::StrAppend(&body_, "</tr>\n");
    for (const std::vector<TableCell>& row : table.rows) {
      absl::StrAppend(&body_, "<tr>");
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string text = i < table.text_columns
                                     ? Breakable(row[i].text)
                                     : EscapeHtml(row[i].text);
        absl::StrAppend(
            &body_, "<td", Class(table, i, row[i].text), Bar(row[i]), ">",
            row[i].strong ? absl::StrCat("<strong>", text, "</strong>") : text,
            "</td>");
      }
      absl::StrAppend(&body_, "</tr>\n");
    }
    absl::StrAppend(&body_, "</table></div>\n");
    Paragraph(table.note);
  }

  static const char* Class(const HtmlTable& table, size_t column,
                           absl::string_view text) {
    if (column >= table.text_columns) return " class=\"number\"";
    return text.size() > 30 ? " class=\"long\"" : "";
  }

  static std::string Bar(const TableCell& cell) {
    if (!cell.bar.has_value()) return "";
    return absl::StrFormat(" style=\"--bar:%.1f%%\"",
                           100 * std::clamp(*cell.bar, 0.0, 1.0));
  }

  std::string body_;
  Json charts_ = Json::array();
};

}  // namespace

std::string RenderHtmlPage(const HtmlPage& page) {
  const BodyWriter writer(page);
  return absl::StrReplaceAll(PageTemplate(),
                             {{"{{TITLE}}", EscapeHtml(page.title)},
                              {"{{BODY}}", writer.body()},
                              {"{{CHARTS}}", JsonForScript(writer.charts())},
                              {"{{CHART_LIBRARY}}", ChartLibrary()}});
}

std::vector<ChartPoint> ThinPoints(const std::vector<ChartPoint>& points,
                                   size_t most) {
  if (points.size() <= most) return points;
  const size_t stretches = std::max<size_t>(most / 2, 1);
  std::vector<ChartPoint> kept;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + i * points.size() / stretches;
    const auto end = points.begin() + (i + 1) * points.size() / stretches;
    auto [lowest, highest] = std::minmax_element(
        begin, end,
        [](const ChartPoint& a, const ChartPoint& b) { return a.y < b.y; });
    if (highest < lowest) std::swap(lowest, highest);
    kept.push_back(*lowest);
    if (highest != lowest) kept.push_back(*highest);
  }
  return kept;
}

}  // namespace tessera
