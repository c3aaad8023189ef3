#include "framework/observe/report/run_page.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/memory_sections.h"
#include "framework/observe/report/profile_sections.h"
#include "framework/observe/report/run_charts.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// The median of `values`, as `format` prints it.
void AddMedian(const std::string& name, const std::vector<double>& values,
               std::string (*format)(std::optional<double>), const char* unit,
               HtmlSection* section) {
  if (values.empty()) return;
  section->headlines.push_back(
      {name, absl::StrCat(format(Median(values)), unit,
                          SpreadMark(IsSpreadOut(values)))});
}

std::optional<double> LastNumber(const std::vector<Json>& records,
                                 absl::string_view path) {
  const std::vector<double> numbers = NumbersAt(records, path);
  if (numbers.empty()) return std::nullopt;
  return numbers.back();
}

HtmlSection SummarySection(const RunRecords& run) {
  HtmlSection section{.title = "Summary"};
  section.paragraphs.push_back(
      "Losses are the last ones. The other figures are medians over the last "
      "half of the records.");
  const std::vector<Json> typical = LastHalf(run.steps);
  const auto add_last = [&](const char* name, const std::vector<Json>& records,
                            absl::string_view path,
                            std::string (*format)(std::optional<double>)) {
    if (const auto value = LastNumber(records, path)) {
      section.headlines.push_back({name, format(value)});
    }
  };
  const auto add = [&](const char* name, absl::string_view path,
                       const char* unit) {
    AddMedian(name, NumbersAt(typical, path), FormatFigure, unit, &section);
  };
  const auto add_share = [&](const char* name, absl::string_view path) {
    AddMedian(name, NumbersAt(typical, path), FormatShare, "", &section);
  };
  add_last("step", run.steps, "step", FormatWhole);
  add_last("training loss", run.steps, "loss", FormatFigure);
  add_last("validation loss", run.evaluations, "loss", FormatFigure);
  add("step time", "step_ms", " ms");
  add("tokens per second", "tokens_per_s", "");
  add("model TFLOP/s per device", "tflops", "");
  add_share("MFU", "mfu");
  add_share("MFU at the clock seen", "gpu.mfu_at_clock");
  if (const auto gib = LastNumber(run.steps, "peak_gib")) {
    section.headlines.push_back(
        {"peak memory", FormatBytes(std::llround(*gib * (1 << 30)))});
  }
  if (run.saved_bytes.has_value()) {
    section.headlines.push_back(
        {"saved for backward",
         FormatBytes(static_cast<int64_t>(*run.saved_bytes))});
  }
  add("power", "gpu.power_w", " W");
  add("energy per step", "gpu.joules_per_step", " J");
  add("energy per token", "gpu.joules_per_token", " J");
  NoteSpread(&section);
  return section;
}

HtmlSection CurvesSection(const RunRecords& run) {
  HtmlSection section{.title = "Training"};
  AddCurves({.title = "Loss", .y_title = "nats per token", .from_zero = false},
            {{"training", "loss", &run.steps},
             {"validation", "loss", &run.evaluations}},
            &section);
  AddCurves({.title = "Throughput", .y_title = "tokens per second"},
            {{"tokens per second", "tokens_per_s", &run.steps}}, &section);
  AddCurves({.title = "Gradient norm before clipping", .y_title = "L2 norm"},
            {{"gradient norm", "grad_norm", &run.steps}}, &section);
  AddCurves({.title = "Learning rate", .y_title = ""},
            {{"learning rate", "lr", &run.steps}}, &section);
  AddCurves({.title = "Loss scale", .y_title = ""},
            {{"loss scale", "loss_scale", &run.steps}}, &section);
  AddCurves({.title = "Model FLOPs utilization", .y_title = "% of peak"},
            {{"at the nominal peak", "mfu", &run.steps, 100},
             {"at the clock seen", "gpu.mfu_at_clock", &run.steps, 100}},
            &section);
  return section;
}

HtmlSection TimeSection(const RunRecords& run) {
  HtmlSection section{.title = "Where the step's time goes"};
  AddPhaseStack(run, &section);
  AddCurves({.title = "Step time", .y_title = "ms"},
            {{"step", "step_ms", &run.steps}}, &section);
  AddCurves({.title = "Between steps", .y_title = "ms per occurrence"},
            {{"evaluation", "phases_ms.evaluation", &run.steps},
             {"checkpoint", "phases_ms.checkpoint", &run.steps}},
            &section);
  AddBlockPhases(run, &section);
  return section;
}

HtmlSection GpuSection(const RunRecords& run) {
  HtmlSection section{.title = "GPU"};
  AddCurves({.title = "Power", .y_title = "W"},
            {{"power", "gpu.power_w", &run.steps}}, &section);
  AddCurves({.title = "Clocks", .y_title = "MHz"},
            {{"SM", "gpu.sm_mhz", &run.steps},
             {"memory", "gpu.memory_mhz", &run.steps}},
            &section);
  AddCurves({.title = "Busy", .y_title = "% of time"},
            {{"tensor cores", "gpu.tensor_percent", &run.steps},
             {"memory", "gpu.dram_percent", &run.steps},
             {"any SM", "gpu.sm_percent", &run.steps}},
            &section);
  AddCurves({.title = "Energy", .y_title = "J per step"},
            {{"energy", "gpu.joules_per_step", &run.steps}}, &section);
  AddCurves({.title = "Temperature", .y_title = "°C"},
            {{"temperature", "gpu.celsius", &run.steps}}, &section);
  return section;
}

std::string Subtitle(const RunRecords& run) {
  const int64_t world_size = static_cast<int64_t>(
      NumberAt(run.header, "device.world_size").value_or(1));
  std::string text =
      absl::StrCat(world_size, " x ", TextAt(run.header, "device.name"));
  if (const std::string build = TextAt(run.header, "build.tessera");
      !build.empty()) {
    absl::StrAppend(&text, "; Tessera ", build, ", LibTorch ",
                    TextAt(run.header, "build.libtorch"));
  }
  if (const auto time = NumberAt(run.header, "time")) {
    absl::StrAppend(
        &text, run.resumes > 0 ? "; last resumed " : "; started ",
        absl::FormatTime("%Y-%m-%d %H:%M",
                         absl::FromUnixSeconds(static_cast<int64_t>(*time)),
                         absl::UTCTimeZone()),
        " UTC");
  }
  return text;
}

}  // namespace

HtmlPage RunPage(const RunRecords& run) {
  HtmlPage page{.title = run.name, .subtitle = Subtitle(run)};
  page.sections.push_back(SummarySection(run));
  for (HtmlSection& section :
       std::vector<HtmlSection>{CurvesSection(run), TimeSection(run),
                                MemorySection(run), GpuSection(run)}) {
    if (section.charts.empty() && section.tables.empty()) continue;
    page.sections.push_back(std::move(section));
  }
  for (HtmlSection& section : ProfileSections(run)) {
    page.sections.push_back(std::move(section));
  }
  if (const std::string config = TextAt(run.header, "config");
      !config.empty()) {
    page.sections.push_back({.title = "Config", .folded_text = config});
  }
  return page;
}

}  // namespace tessera
