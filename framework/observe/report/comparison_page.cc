#include "framework/observe/report/comparison_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figure_comparison.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/memory_sections.h"
#include "framework/observe/report/run_charts.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostKernels = 30;

std::string Verdict(const FigureComparison& figure) {
  if (figure.a == figure.b) return "equal";
  if (!figure.noise.has_value()) return "too few records";
  return figure.exceeds_noise() ? "differs" : "within noise";
}

// In percent of A.
std::string Noise(const FigureComparison& figure) {
  if (!figure.noise.has_value() || figure.a == 0) return "n/a";
  const double share = *figure.noise / std::abs(figure.a);
  return share > 1 ? "> 100 %" : absl::StrCat("± ", FormatShare(share));
}

void AddRow(const FigureComparison& figure, HtmlTable* table) {
  table->rows.push_back(
      {{absl::StrReplaceAll(figure.path, {{"phases_ms.", ""}, {"gpu.", ""}})},
       {Verdict(figure), std::nullopt, figure.exceeds_noise()},
       {FormatFigure(figure.ratio())},
       {Noise(figure)},
       {absl::StrCat(FormatFigure(figure.a), SpreadMark(figure.a_spread_out))},
       {absl::StrCat(FormatFigure(figure.b),
                     SpreadMark(figure.b_spread_out))}});
}

HtmlSection FiguresSection(const RunRecords& a, const RunRecords& b) {
  HtmlSection section{.title = "Figures"};
  section.paragraphs.push_back(
      "Medians over the last half of each run's records. A figure differs if "
      "the medians are further apart than three standard errors, which follow "
      "from the spread of the records (noise, in percent of A).");
  HtmlTable of_step{.title = "Steps"}, of_phases{.title = "Phases, ms"},
      of_gpu{.title = "GPU"};
  for (const FigureComparison& figure : CompareFigures(a, b)) {
    AddRow(figure, absl::StartsWith(figure.path, "phases_ms.") ? &of_phases
                   : absl::StartsWith(figure.path, "gpu.")     ? &of_gpu
                                                               : &of_step);
  }
  if (a.saved_bytes.has_value() && b.saved_bytes.has_value()) {
    // The same in every step, so there is no noise.
    AddRow({"saved_bytes", *a.saved_bytes, *b.saved_bytes, 0}, &of_step);
  }
  for (HtmlTable* table : {&of_step, &of_phases, &of_gpu}) {
    if (table->rows.empty()) continue;
    // The verdict and its reasons come first: a phone shows these.
    table->columns = {"figure", "", "B / A", "noise", "A", "B"};
    table->text_columns = 2;
    NoteSpread(table);
    section.tables.push_back(std::move(*table));
  }
  return section;
}

// How the losses of the steps that both runs logged compare.
std::string LossSentence(const RunRecords& a, const RunRecords& b) {
  std::map<double, double> losses;  // of A, by step
  for (const Json& record : a.steps) {
    if (const auto loss = NumberAt(record, "loss")) {
      losses[*NumberAt(record, "step")] = *loss;
    }
  }
  int common = 0;
  double largest = 0, at_step = 0;
  for (const Json& record : b.steps) {
    const auto loss = NumberAt(record, "loss");
    const auto found = losses.find(*NumberAt(record, "step"));
    if (!loss.has_value() || found == losses.end()) continue;
    ++common;
    if (const double difference = std::abs(*loss - found->second);
        difference > largest) {
      largest = difference;
      at_step = found->first;
    }
  }
  if (common == 0) return "The runs have logged no step in common.";
  if (largest == 0) {
    return absl::StrCat("The losses of all ", common,
                        " steps that both runs logged are the same.");
  }
  return absl::StrCat("Over ", common,
                      " steps that both runs logged, the losses differ by at "
                      "most ",
                      FormatFigure(largest), ", at step ", FormatWhole(at_step),
                      ".");
}

HtmlSection CurvesSection(const RunRecords& a, const RunRecords& b) {
  HtmlSection section{.title = "Curves"};
  section.paragraphs.push_back(LossSentence(a, b));
  const auto evaluations_of_both = [&](const char* figure) {
    std::vector<Curve> curves = EvaluationCurves(figure, a, "A, ");
    for (Curve& curve : EvaluationCurves(figure, b, "B, ")) {
      curves.push_back(std::move(curve));
    }
    return curves;
  };
  std::vector<Curve> losses = evaluations_of_both("loss");
  losses.insert(losses.begin(),
                {{"loss", &a.steps, "A"}, {"loss", &b.steps, "B"}});
  AddCurves({.title = "Loss", .from_zero = false}, losses, &section);
  AddCurves(BitsPerByteChart(), evaluations_of_both("bits_per_byte"), &section);
  for (const char* const figure :
       {"step_ms", "grad_norm", "peak_gib", "gpu.power_w"}) {
    AddCurves({}, {{figure, &a.steps, "A"}, {figure, &b.steps, "B"}}, &section);
  }
  return section;
}

std::string Kind(const KernelComparison& kernel) {
  if (!kernel.a_ms.has_value()) return "added";
  if (!kernel.b_ms.has_value()) return "gone";
  if (kernel.a_instances != kernel.b_instances) return "other count";
  return "";
}

HtmlSection KernelsSection(const RunRecords& a, const RunRecords& b) {
  HtmlSection section{.title = "Kernels"};
  const std::vector<KernelComparison> kernels = CompareKernels(a, b);
  size_t added = 0, gone = 0;
  for (const KernelComparison& kernel : kernels) {
    added += Kind(kernel) == "added" ? 1 : 0;
    gone += Kind(kernel) == "gone" ? 1 : 0;
  }
  section.paragraphs.push_back(absl::StrCat(
      "B starts ", FormatCountOf(added, "kernel"),
      " that A does not, and A starts ", FormatCountOf(gone, "kernel"),
      " that B does not. Times are ms per traced step; the largest change "
      "comes first."));
  HtmlTable table{.columns = {"kernel", "", "A, ms", "B, ms", "change, ms",
                              "A, instances", "B, instances"},
                  .text_columns = 2};
  for (const KernelComparison& kernel : kernels) {
    if (table.rows.size() == kMostKernels) break;
    table.rows.push_back({{kernel.name},
                          {Kind(kernel)},
                          {FormatFigure(kernel.a_ms)},
                          {FormatFigure(kernel.b_ms)},
                          {FormatFigure(kernel.change_ms())},
                          {FormatWhole(kernel.a_instances)},
                          {FormatWhole(kernel.b_instances)}});
  }
  section.tables.push_back(std::move(table));
  return section;
}

// The lines of the configs that only one of the runs has.
std::string ConfigDifference(const RunRecords& a, const RunRecords& b) {
  const auto lines = [](const RunRecords& run) -> std::vector<std::string> {
    return absl::StrSplit(TextAt(run.header, "config"), '\n');
  };
  const std::vector<std::string> in_a = lines(a), in_b = lines(b);
  std::string text;
  const auto add = [&](const char* mark, const std::vector<std::string>& from,
                       const std::vector<std::string>& other) {
    for (const std::string& line : from) {
      if (std::find(other.begin(), other.end(), line) == other.end()) {
        absl::StrAppend(&text, mark, line, "\n");
      }
    }
  };
  add("A  ", in_a, in_b);
  add("B  ", in_b, in_a);
  return text;
}

}  // namespace

HtmlPage ComparisonPage(const RunRecords& a, const RunRecords& b) {
  HtmlPage page{.title = absl::StrCat(a.name, " and ", b.name),
                .subtitle = absl::StrCat("A is ", a.name, " on ",
                                         TextAt(a.header, "device.name"),
                                         "; B is ", b.name, " on ",
                                         TextAt(b.header, "device.name"), ".")};
  page.sections = {FiguresSection(a, b), CurvesSection(a, b)};
  if (HtmlSection memory = MemoryComparison(a, b); !memory.tables.empty()) {
    page.sections.push_back(std::move(memory));
  }
  if (!ListAt(a.profile, "step.kernels").empty() &&
      !ListAt(b.profile, "step.kernels").empty()) {
    page.sections.push_back(KernelsSection(a, b));
  }
  if (std::string difference = ConfigDifference(a, b); !difference.empty()) {
    page.sections.push_back({.title = "Lines of the configs that differ",
                             .folded_text = std::move(difference)});
  }
  return page;
}

}  // namespace tessera
