#include "bench/studies/study_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "bench/studies/read_results.h"
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

// "NVIDIA H200; tessera 0.1.0, ..."; empty for a cell that has crashed.
std::string MachineOf(const Json& record) {
  if (!record.contains("device")) return "";
  return absl::StrCat(TextAt(record, "device"), "; ", TextAt(record, "build"));
}

// A sentence for each machine that measured a cell.
std::set<std::string> Machines(const CellRecords& records) {
  std::set<std::string> machines;
  for (const auto& [name, record] : records) {
    const std::string machine = MachineOf(*record);
    if (!machine.empty()) machines.insert(absl::StrCat(machine, "."));
  }
  return machines;
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

// A line for each device and build that have measured some of the cells, but
// not the latest.
std::vector<std::string> OtherMachines(const CellRecords& records) {
  std::map<std::string, std::vector<std::string>> cells;
  std::pair<std::optional<double>, std::string> last;  // when, which
  for (const auto& [name, record] : records) {
    const std::string machine = MachineOf(*record);
    if (machine.empty()) continue;
    cells[machine].push_back(name);
    last = std::max(last, {NumberAt(*record, "time"), machine});
  }
  cells.erase(last.second);
  std::vector<std::string> lines;
  for (const auto& [machine, names] : cells) {
    lines.push_back(
        absl::StrCat(machine, ": ", absl::StrJoin(names, "; "), "."));
  }
  return lines;
}

struct Notes {
  const char* title;
  std::vector<std::string> lines;  // at least one
};

// What both pages show.
struct Content {
  std::set<std::string> machines;
  std::vector<HtmlTable> tables;
  std::vector<Notes> notes;
  std::string missing;  // empty if every cell has run
};

Content ContentOf(const Study& study, const CellRecords& records) {
  Content content{
      .machines = Machines(records),
      .tables = StudyTables(study, records),
      .notes = {{"Cells without figures", Failures(records)},
                {"Steps whose clocks differ by more than 2 %",
                 ClockDifferences(records)},
                {"Cells of another device or build", OtherMachines(records)}}};
  std::erase_if(content.notes, [](const Notes& n) { return n.lines.empty(); });
  const size_t missing = study.cells.size() - records.size();
  if (missing > 0) {
    content.missing = absl::StrCat(missing, " of ", study.cells.size(),
                                   " cells have not run.");
  }
  return content;
}

// Adds the lines and an empty one, if there are any.
void AddParagraph(absl::string_view lines, std::string* page) {
  if (!lines.empty()) absl::StrAppend(page, lines, "\n\n");
}

}  // namespace

std::string StudyPage(const Study& study, const std::vector<Json>& records,
                      absl::string_view command) {
  const Content content = ContentOf(study, RecordsOf(study, records));
  const auto escaped = [](std::string* text, absl::string_view line) {
    absl::StrAppend(text, Escaped(line));
  };
  const auto item = [](std::string* text, absl::string_view line) {
    absl::StrAppend(text, Fold("- " + Escaped(line), kColumns, 2));
  };
  std::string page;
  AddParagraph("# " + Escaped(study.config.title()), &page);
  AddParagraph(Fold(study.config.about(), kColumns, 0), &page);
  AddParagraph(absl::StrJoin(content.machines, "\n", escaped), &page);
  absl::StrAppend(&page, "    ", command, "\n\n", kTables, "\n");
  for (const HtmlTable& table : content.tables) {
    absl::StrAppend(&page, MarkdownTable(table));
  }
  for (const Notes& notes : content.notes) {
    AddParagraph(absl::StrCat(notes.title, ":"), &page);
    AddParagraph(absl::StrJoin(notes.lines, "\n", item), &page);
  }
  AddParagraph(content.missing, &page);
  page.pop_back();
  return page;
}

HtmlPage StudyHtmlPage(const Study& study, const std::vector<Json>& records) {
  const CellRecords by_name = RecordsOf(study, records);
  Content content = ContentOf(study, by_name);
  HtmlPage page{.title = study.config.title(),
                .subtitle = absl::StrJoin(content.machines, "\n")};
  HtmlSection summary{.title = "Study"};
  for (const std::string& text : {study.config.about(), content.missing}) {
    if (!text.empty()) summary.paragraphs.push_back(text);
  }
  page.sections.push_back(std::move(summary));
  HtmlSection charts{.title = "Charts", .charts = StudyCharts(study, by_name)};
  if (!charts.charts.empty()) page.sections.push_back(std::move(charts));
  page.sections.push_back(
      {.title = "Tables", .tables = std::move(content.tables)});
  for (Notes& notes : content.notes) {
    page.sections.push_back(
        {.title = notes.title, .paragraphs = std::move(notes.lines)});
  }
  return page;
}

absl::Status CheckHoldsNothingElse(const std::string& folder) {
  if (FileExists(folder + kResultsFile)) return absl::OkStatus();
  const std::string readme = folder + "/README.md";
  absl::string_view other;
  if (FileExists(folder + "/run.jsonl")) {
    other = "run.jsonl";
  } else if (FileExists(readme)) {
    ASSIGN_OR_RETURN(const std::string page, ReadFile(readme));
    if (!absl::StrContains(page, kTables)) other = "README.md";
  } else if (FileExists(folder + "/index.html")) {
    other = "index.html";
  }
  if (other.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      folder, " has a ", other, " that is no study's; give another --out"));
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
