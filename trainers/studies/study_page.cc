#include "trainers/studies/study_page.h"

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
constexpr char kReading[] = "\n## Reading\n";

// A record of each cell, by StudyCell::Name().
using CellRecords = std::map<std::string, const Json*>;

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

std::optional<double> NumberAt(const Json& figures, absl::string_view path) {
  const Json* figure = FigureAt(figures, path);
  if (figure == nullptr || !figure->is_number()) return std::nullopt;
  return figure->get<double>();
}

// What stands in a line of Markdown's table.
std::string Escaped(std::string text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}});
}

class TableWriter {
 public:
  TableWriter(const Study& study, const CellRecords& records,
              const StudyTable& table)
      : study_(study), records_(records), table_(table) {}

  std::string Write() const {
    std::string text;
    if (!table_.title().empty()) {
      absl::StrAppend(&text, "### ", table_.title(), "\n\n");
    }
    std::vector<std::string> titles;
    for (const StudyAxis& axis : study_.config.axis()) {
      titles.push_back(axis.name());
    }
    for (const StudyColumn& column : table_.column()) {
      titles.push_back(column.title());
    }
    Line(titles, &text);
    absl::StrAppend(&text, "|");
    for (int i = 0; i < static_cast<int>(titles.size()); ++i) {
      absl::StrAppend(&text, i < study_.config.axis_size() ? "---|" : "---:|");
    }
    absl::StrAppend(&text, "\n");
    for (const StudyCell& cell : study_.cells) WriteCell(cell, &text);
    return text + "\n";
  }

 private:
  static void Line(const std::vector<std::string>& cells, std::string* text) {
    absl::StrAppend(text, "| ", absl::StrJoin(cells, " | "), " |\n");
  }

  void WriteCell(const StudyCell& cell, std::string* text) const {
    const auto found = records_.find(cell.Name());
    if (found == records_.end()) return;
    const Json& record = *found->second;
    std::vector<std::string> labels;
    for (const auto& [axis, label] : cell.labels) labels.push_back(label);
    if (record["status"] != "OK") {
      if (!table_.list().empty()) return;
      std::vector<std::string> line = labels;
      line.push_back(
          absl::StrCat("**", record["status"].get<std::string>(), "**"));
      line.resize(labels.size() + table_.column_size());
      Line(line, text);
      return;
    }
    if (table_.list().empty()) {
      WriteLine(cell, labels, record["figures"], text);
      return;
    }
    const Json* list = FigureAt(record["figures"], table_.list());
    if (list == nullptr || !list->is_array()) return;
    int lines = 0;
    for (const Json& element : *list) {
      if (lines++ == table_.limit()) break;
      WriteLine(cell, labels, element, text);
    }
  }

  void WriteLine(const StudyCell& cell, const std::vector<std::string>& labels,
                 const Json& figures, std::string* text) const {
    std::vector<std::string> line = labels;
    for (const StudyColumn& column : table_.column()) {
      line.push_back(Text(cell, column, figures));
    }
    Line(line, text);
  }

  std::string Text(const StudyCell& cell, const StudyColumn& column,
                   const Json& figures) const {
    const Json* figure = FigureAt(figures, column.figure());
    if (figure == nullptr || figure->is_null()) return "n/a";
    if (figure->is_string()) return Escaped(figure->get<std::string>());
    if (!figure->is_number()) return "n/a";
    double value = figure->get<double>();
    if (!column.relative_to().empty()) {
      const std::optional<double> base = Baseline(cell, column);
      if (!base.has_value() || value == 0) return "n/a";
      value = *base / value;
    }
    std::string text = absl::StrFormat("%.*f", column.digits(), value);
    if (const std::optional<double> spread = NumberAt(figures, column.spread());
        spread.has_value()) {
      absl::StrAppendFormat(&text, " ± %.*f", column.digits(), *spread);
    }
    return text;
  }

  // The column's figure in the cell that differs only in what
  // `column.relative_to()` says.
  std::optional<double> Baseline(const StudyCell& cell,
                                 const StudyColumn& column) const {
    const std::vector<std::string> sides =
        absl::StrSplit(column.relative_to(), absl::MaxSplits('=', 1));
    StudyCell base = cell;
    for (auto& [axis, label] : base.labels) {
      if (axis == sides[0]) label = sides[1];
    }
    const auto found = records_.find(base.Name());
    if (found == records_.end() || (*found->second)["status"] != "OK") {
      return std::nullopt;
    }
    return NumberAt((*found->second)["figures"], column.figure());
  }

  const Study& study_;
  const CellRecords& records_;
  const StudyTable& table_;
};

}  // namespace

const Json* FigureAt(const Json& figures, absl::string_view path) {
  const Json* at = &figures;
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(std::string(part));
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::string StudyPage(const Study& study, const std::vector<Json>& records,
                      absl::string_view command) {
  const CellRecords by_name = RecordsOf(study, records);
  std::string page = absl::StrCat("# ", study.config.title(), "\n\n");
  if (!study.config.about().empty()) {
    absl::StrAppend(&page, study.config.about(), "\n\n");
  }
  std::set<std::string> machines;
  for (const auto& [name, record] : by_name) {
    if (!record->contains("device")) continue;
    machines.insert(absl::StrCat((*record)["device"].get<std::string>(), "; ",
                                 (*record)["build"].get<std::string>(), "."));
  }
  if (!machines.empty()) {
    absl::StrAppend(&page, absl::StrJoin(machines, "\n"), "\n\n");
  }
  absl::StrAppend(&page, "    ", command, "\n\n");
  for (const StudyTable& table : study.config.table()) {
    absl::StrAppend(&page, TableWriter(study, by_name, table).Write());
  }
  std::string failures;
  for (const auto& [name, record] : by_name) {
    const std::string status = (*record)["status"];
    if (status == "OK") continue;
    absl::StrAppend(&failures, "- ", name, ": ", status, ". ",
                    Escaped(record->value("message", "")), "\n");
  }
  if (!failures.empty()) {
    absl::StrAppend(&page, "Cells without figures:\n\n", failures, "\n");
  }
  const size_t missing = study.cells.size() - by_name.size();
  if (missing > 0) {
    absl::StrAppend(&page, missing, " of ", study.cells.size(),
                    " cells have not run.\n\n");
  }
  page.pop_back();
  return page;
}

absl::Status WriteStudyPage(const std::string& folder, const Study& study,
                            const std::vector<Json>& records,
                            absl::string_view command) {
  const std::string path = folder + "/README.md";
  std::string page = StudyPage(study, records, command);
  if (FileExists(path)) {
    ASSIGN_OR_RETURN(const std::string earlier, ReadFile(path));
    const size_t reading = earlier.find(kReading);
    if (reading != std::string::npos) {
      absl::StrAppend(&page, earlier.substr(reading));
    }
  }
  return WriteFileAtomically(path, page);
}

}  // namespace tessera
