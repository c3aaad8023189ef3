#include "bench/studies/study_tables.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Zero has no sign.
std::string Fixed(double value, int digits) {
  std::string text = absl::StrFormat("%.*f", digits, value);
  const bool zero = text.find_first_not_of("-0.") == std::string::npos;
  return zero && text[0] == '-' ? text.substr(1) : text;
}

// Where the timings are that a column's figure follows from: "step_ms" of
// "step_ms.mean". Empty if it does not say.
absl::string_view SamplesOf(const StudyColumn& column) {
  if (column.has_samples()) return column.samples();
  absl::string_view path = column.figure();
  return absl::ConsumeSuffix(&path, ".mean") ||
                 absl::ConsumeSuffix(&path, ".median")
             ? path
             : "";
}

// Whether these timings are spread out; false if `figures` does not say.
bool TimingsAreSpreadOut(const StudyColumn& column, const Json& figures) {
  const absl::string_view path = SamplesOf(column);
  const auto at = [&](const char* name) {
    return NumberAt(figures, absl::StrCat(path, ".", name));
  };
  const std::optional<double> median = at("median"), std = at("std");
  const std::optional<double> p10 = at("p10"), p90 = at("p90");
  if (!median.has_value()) return false;
  if (std.has_value()) return IsSpreadOut(*median, *std);
  // These are 2.563 standard deviations apart if the times are normal.
  return p10.has_value() && p90.has_value() &&
         IsSpreadOut(*median, (*p90 - *p10) / 2.563);
}

class TableWriter {
 public:
  TableWriter(const Study& study, const CellRecords& records,
              const StudyTable& table)
      : study_(study), records_(records), table_(table) {}

  HtmlTable Write() {
    HtmlTable table{
        .title = table_.title(),
        .text_columns = static_cast<size_t>(study_.config.axis_size())};
    for (const StudyAxis& axis : study_.config.axis()) {
      table.columns.push_back(axis.name());
    }
    for (const StudyColumn& column : table_.column()) {
      table.columns.push_back(column.title());
    }
    for (const StudyCell& cell : study_.cells) AddCell(cell, &table);
    for (const StudyColumn& column : table_.column()) {
      if (!text_figures_.contains(column.figure())) break;
      ++table.text_columns;
    }
    NoteSpread(&table);
    return table;
  }

  HtmlTable WriteExtremes() const {
    HtmlTable table{.title = table_.title(),
                    .columns = {"figure", "", "cell", "value"},
                    .text_columns = 3};
    for (const StudyColumn& column : table_.column()) {
      std::vector<std::pair<double, std::string>> figures;
      for (const auto& [name, record] : records_) {
        const std::optional<double> figure =
            NumberAt(*record, absl::StrCat("figures.", column.figure()));
        if (figure.has_value()) figures.emplace_back(*figure, name);
      }
      if (figures.empty()) continue;
      const auto [lowest, highest] =
          std::minmax_element(figures.begin(), figures.end());
      for (const auto& [what, at] :
           {std::pair("lowest", lowest), std::pair("highest", highest)}) {
        table.rows.push_back({{column.title()},
                              {what},
                              {at->second},
                              {Fixed(at->first, column.digits())}});
      }
    }
    return table;
  }

 private:
  void AddCell(const StudyCell& cell, HtmlTable* table) {
    const auto found = records_.find(cell.Name());
    if (found == records_.end()) return;
    const Json& record = *found->second;
    std::vector<TableCell> labels;
    for (const auto& [axis, label] : cell.labels) labels.push_back({label});
    if (record["status"] != "OK") {
      if (!table_.list().empty()) return;
      std::vector<TableCell> line = labels;
      line.push_back({TextAt(record, "status"), std::nullopt, true});
      line.resize(labels.size() + table_.column_size());
      table->rows.push_back(std::move(line));
      return;
    }
    if (table_.list().empty()) {
      AddLine(cell, labels, record["figures"], table);
      return;
    }
    const Json* list = FigureAt(record["figures"], table_.list());
    if (list == nullptr || !list->is_array()) return;
    int lines = 0;
    for (const Json& element : *list) {
      if (lines++ == table_.limit()) break;
      AddLine(cell, labels, element, table);
    }
  }

  void AddLine(const StudyCell& cell, std::vector<TableCell> line,
               const Json& figures, HtmlTable* table) {
    for (const StudyColumn& column : table_.column()) {
      const Json* figure = FigureAt(figures, column.figure());
      if (figure != nullptr && figure->is_string()) {
        text_figures_.insert(column.figure());
      }
      line.push_back({Text(cell, column, figures)});
    }
    table->rows.push_back(std::move(line));
  }

  std::string Text(const StudyCell& cell, const StudyColumn& column,
                   const Json& figures) const {
    const Json* figure = FigureAt(figures, column.figure());
    if (figure == nullptr || figure->is_null()) return "n/a";
    if (figure->is_string()) return figure->get<std::string>();
    if (!figure->is_number()) return "n/a";
    double value = figure->get<double>();
    bool spread_out = TimingsAreSpreadOut(column, figures);
    if (!column.relative_to().empty()) {
      const Json* const other = OtherCell(cell, column);
      if (other == nullptr) return "n/a";
      const std::optional<double> base = NumberAt(*other, column.figure());
      if (!base.has_value() || value == 0) return "n/a";
      spread_out = spread_out || TimingsAreSpreadOut(column, *other);
      if (column.cost().empty()) {
        value = *base / value;
      } else {
        const std::optional<double> cost = NumberAt(figures, column.cost());
        if (!cost.has_value() || value >= *base) return "n/a";
        value = std::ceil(*cost / (*base - value));
      }
    }
    std::string text = Fixed(value, column.digits());
    if (const std::optional<double> spread = NumberAt(figures, column.spread());
        spread.has_value()) {
      absl::StrAppendFormat(&text, " ± %.*f", column.digits(), *spread);
    }
    return absl::StrCat(text, SpreadMark(spread_out));
  }

  // The figures of the cell that differs only in what `column.relative_to()`
  // says; null if it has none.
  const Json* OtherCell(const StudyCell& cell,
                        const StudyColumn& column) const {
    StudyCell base = cell;
    for (const absl::string_view part :
         absl::StrSplit(column.relative_to(), ',')) {
      const std::vector<std::string> sides =
          absl::StrSplit(part, absl::MaxSplits('=', 1));
      for (auto& [axis, label] : base.labels) {
        if (axis == sides[0]) label = sides[1];
      }
    }
    const auto found = records_.find(base.Name());
    return found == records_.end() ? nullptr
                                   : FigureAt(*found->second, "figures");
  }

  const Study& study_;
  const CellRecords& records_;
  const StudyTable& table_;
  std::set<std::string> text_figures_;
};

}  // namespace

CellRecords RecordsOf(const Study& study, const std::vector<Json>& records) {
  CellRecords by_name;
  for (const Json& record : records) {
    if (record.value("type", "") != "cell") continue;
    for (const StudyCell& cell : study.cells) {
      bool same = record["cell"].size() == cell.labels.size();
      for (const auto& [axis, label] : cell.labels) {
        same = same && record["cell"].value(axis, "") == label;
      }
      if (same) by_name[cell.Name()] = &record;
    }
  }
  return by_name;
}

std::vector<HtmlTable> StudyTables(const Study& study,
                                   const CellRecords& records) {
  std::vector<HtmlTable> tables;
  for (const StudyTable& table : study.config.table()) {
    TableWriter writer(study, records, table);
    tables.push_back(table.extremes() ? writer.WriteExtremes()
                                      : writer.Write());
  }
  return tables;
}

}  // namespace tessera
