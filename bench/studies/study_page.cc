#include "bench/studies/study_page.h"

#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "bench/studies/study_tables.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/terminal.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
constexpr char kReading[] = "## Reading\n", kTables[] = "## Tables\n";
constexpr int kColumns = 100;  // of prose; tables and commands are not folded

// Whether a letter, not only of ASCII, or a digit is at `at`, which may be
// npos.
bool IsInWord(absl::string_view text, size_t at) {
  if (at >= text.size()) return false;
  const unsigned char byte = static_cast<unsigned char>(text[at]);
  return absl::ascii_isalnum(byte) || byte >= 0x80;
}

// Plain text as Markdown that shows it, on one line, in a table, too.
// Underscores inside a word have no meaning, and stay readable in the source.
std::string Escaped(absl::string_view text) {
  constexpr absl::string_view kSpecial = "\\`*[]|#~$!";
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '\n' || c == '\r') {
      escaped += ' ';
    } else {
      const bool edge =
          c == '_' && !(IsInWord(text, text.find_last_not_of('_', i)) &&
                        IsInWord(text, text.find_first_not_of('_', i)));
      if (edge || kSpecial.find(c) != absl::string_view::npos) escaped += '\\';
      escaped += c;
    }
  }
  return escaped;
}

void AddLine(const std::vector<std::string>& cells, std::string* text) {
  absl::StrAppend(text, "| ", absl::StrJoin(cells, " | "), " |\n");
}

std::string MarkdownTable(const HtmlTable& table) {
  std::string text;
  if (!table.title.empty()) {
    absl::StrAppend(&text, "### ", Escaped(table.title), "\n\n");
  }
  std::vector<std::string> columns;
  for (const std::string& column : table.columns) {
    columns.push_back(Escaped(column));
  }
  AddLine(columns, &text);
  absl::StrAppend(&text, "|");
  for (size_t i = 0; i < table.columns.size(); ++i) {
    absl::StrAppend(&text, i < table.text_columns ? "---|" : "---:|");
  }
  absl::StrAppend(&text, "\n");
  for (const std::vector<TableCell>& row : table.rows) {
    std::vector<std::string> cells;
    for (const TableCell& cell : row) {
      const char* const mark = cell.strong ? "**" : "";
      cells.push_back(absl::StrCat(mark, Escaped(cell.text), mark));
    }
    AddLine(cells, &text);
  }
  absl::StrAppend(&text, "\n");
  if (!table.note.empty()) {
    absl::StrAppend(&text, Fold(Escaped(table.note), kColumns, 0), "\n\n");
  }
  return text;
}

// "NVIDIA H200; tessera 0.1.0, ...", of every machine that measured a cell.
std::string Machines(const CellRecords& records) {
  std::set<std::string> machines;
  for (const auto& [name, record] : records) {
    if (!record->contains("device")) continue;
    machines.insert(absl::StrCat(TextAt(*record, "device"), "; ",
                                 TextAt(*record, "build"), "."));
  }
  return absl::StrJoin(machines, "\n");
}

// A line for each cell that has no figures.
std::vector<std::string> Failures(const CellRecords& records) {
  std::vector<std::string> lines;
  for (const auto& [name, record] : records) {
    const std::string status = TextAt(*record, "status");
    if (status == "OK") continue;
    // What follows the first line says what to change in a run.
    const std::string message = TextAt(*record, "message");
    lines.push_back(absl::StrCat(name, ": ", status, ". ",
                                 message.substr(0, message.find('\n'))));
  }
  return lines;
}

// A line for each cell whose step takes longer or shorter by the host's clock,
// or in a trace, than by the device's events.
std::vector<std::string> ClockDifferences(const CellRecords& records) {
  constexpr double kMostPct = 2;
  std::vector<std::string> lines;
  for (const auto& [name, record] : records) {
    const auto ms = [&record = *record](absl::string_view figure) {
      return NumberAt(record, absl::StrCat("figures.", figure));
    };
    const std::optional<double> events = ms("step_ms.mean");
    if (!events.has_value()) continue;
    std::vector<std::string> others;
    const auto compare = [&](const char* clock, absl::string_view figure) {
      const std::optional<double> other = ms(figure);
      if (!other.has_value()) return;
      const double off_pct = 100 * (*other / *events - 1);
      if (std::abs(off_pct) <= kMostPct) return;
      others.push_back(
          absl::StrFormat("%s %.3f ms (%+.1f %%)", clock, *other, off_pct));
    };
    compare("by the host's clock", "step_wall_ms");
    compare("in a trace", "kernels.wall_ms");
    if (others.empty()) continue;
    lines.push_back(absl::StrFormat("%s: %.3f ms by events, %s.", name, *events,
                                    absl::StrJoin(others, ", ")));
  }
  return lines;
}

struct Notes {
  const char* title;
  std::vector<std::string> lines;
};
// Those that have lines.
std::vector<Notes> NotesOn(const CellRecords& records) {
  std::vector<Notes> notes = {{"Cells without figures", Failures(records)},
                              {"Steps whose clocks differ by more than 2 %",
                               ClockDifferences(records)}};
  std::erase_if(notes, [](const Notes& n) { return n.lines.empty(); });
  return notes;
}

// Empty if every cell has run.
std::string MissingCells(const Study& study, const CellRecords& records) {
  const size_t missing = study.cells.size() - records.size();
  if (missing == 0) return "";
  return absl::StrCat(missing, " of ", study.cells.size(),
                      " cells have not run.");
}

}  // namespace

std::string StudyPage(const Study& study, const std::vector<Json>& records,
                      absl::string_view command) {
  const CellRecords by_name = RecordsOf(study, records);
  std::string page = absl::StrCat("# ", Escaped(study.config.title()), "\n\n");
  if (!study.config.about().empty()) {
    absl::StrAppend(&page, Fold(study.config.about(), kColumns, 0), "\n\n");
  }
  if (const std::string machines = Machines(by_name); !machines.empty()) {
    for (const absl::string_view line : absl::StrSplit(machines, '\n')) {
      absl::StrAppend(&page, Escaped(line), "\n");
    }
    absl::StrAppend(&page, "\n");
  }
  absl::StrAppend(&page, "    ", command, "\n\n", kTables, "\n");
  for (const HtmlTable& table : StudyTables(study, by_name)) {
    absl::StrAppend(&page, MarkdownTable(table));
  }
  for (const Notes& notes : NotesOn(by_name)) {
    absl::StrAppend(&page, notes.title, ":\n\n");
    for (const std::string& line : notes.lines) {
      absl::StrAppend(&page, Fold("- " + Escaped(line), kColumns, 2), "\n");
    }
    absl::StrAppend(&page, "\n");
  }
  if (const std::string missing = MissingCells(study, by_name);
      !missing.empty()) {
    absl::StrAppend(&page, missing, "\n\n");
  }
  page.pop_back();
  return page;
}

HtmlPage StudyHtmlPage(const Study& study, const std::vector<Json>& records) {
  const CellRecords by_name = RecordsOf(study, records);
  HtmlPage page{.title = study.config.title(), .subtitle = Machines(by_name)};
  HtmlSection summary{.title = "Study"};
  if (!study.config.about().empty()) {
    summary.paragraphs.push_back(study.config.about());
  }
  if (std::string missing = MissingCells(study, by_name); !missing.empty()) {
    summary.paragraphs.push_back(std::move(missing));
  }
  page.sections.push_back(std::move(summary));
  HtmlSection charts{.title = "Charts", .charts = StudyCharts(study, by_name)};
  if (!charts.charts.empty()) page.sections.push_back(std::move(charts));
  page.sections.push_back(
      {.title = "Tables", .tables = StudyTables(study, by_name)});
  for (Notes& notes : NotesOn(by_name)) {
    page.sections.push_back(
        {.title = notes.title, .paragraphs = std::move(notes.lines)});
  }
  return page;
}

absl::Status WriteStudyPage(const std::string& folder, const Study& study,
                            const std::vector<Json>& records,
                            absl::string_view command) {
  const std::string path = folder + "/README.md";
  std::string page = StudyPage(study, records, command);
  if (FileExists(path)) {
    ASSIGN_OR_RETURN(const std::string earlier, ReadFile(path));
    const size_t begin = earlier.find(kReading);
    if (begin != std::string::npos) {
      const size_t end = earlier.find(kTables, begin);
      std::string reading(absl::StripTrailingAsciiWhitespace(
          absl::string_view(earlier).substr(begin, end - begin)));
      page.insert(page.find(kTables), reading + "\n\n");
    }
  }
  RETURN_IF_ERROR(WriteFileAtomically(path, page));
  return WriteFileAtomically(folder + "/index.html",
                             RenderHtmlPage(StudyHtmlPage(study, records)));
}

}  // namespace tessera
