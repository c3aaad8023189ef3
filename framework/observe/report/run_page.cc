#include "framework/observe/report/run_page.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "framework/base/statistics.h"
#include "framework/observe/format.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/memory_sections.h"
#include "framework/observe/report/profile_sections.h"
#include "framework/observe/report/run_charts.h"
#include "framework/observe/report/spread.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

HtmlSection SummarySection(const RunRecords& run) {
  HtmlSection section{.title = "Summary"};
  section.paragraphs.push_back(
      "Losses are the last ones. The other figures are medians over the last "
      "half of the records.");
  const std::vector<Json> typical = LastHalf(run.steps);
  const auto add_last = [&](const std::string& name,
                            const std::vector<Json>& records,
                            absl::string_view path,
                            std::string (*format)(std::optional<double>)) {
    const std::vector<double> values = NumbersAt(records, path);
    if (!values.empty()) {
      section.headlines.push_back({name, format(values.back())});
    }
  };
  const auto add_median = [&](absl::string_view path) {
    const std::vector<double> values = NumbersAt(typical, path);
    if (values.empty()) return;
    const StepField& field = *FindStepField(path);
    section.headlines.push_back(
        {field.title,
         absl::StrCat(FormatFigure(*Median(values) * field.scale), " ",
                      field.unit, SpreadMark(IsSpreadOut(values)))});
  };
  add_last("step", run.steps, "step", FormatWhole);
  add_last("training loss", run.steps, "loss", FormatFigure);
  add_last("validation loss", run.evaluations, "loss", FormatFigure);
  add_last("validation, bits per byte", run.evaluations, "bits_per_byte",
           FormatFigure);
  for (const auto& [name, records] : run.validation_sets) {
    add_last(absl::StrCat("loss on ", name), records, "loss", FormatFigure);
  }
  for (const char* const path :
       {"step_ms", "tokens_per_s", "tflops", "mfu", "gpu.mfu_at_clock"}) {
    add_median(path);
  }
  add_last("peak memory", run.steps, "peak_gib", [](std::optional<double> gib) {
    return FormatBytes(std::llround(*gib * kGibibyte));
  });
  if (run.saved_bytes.has_value()) {
    section.headlines.push_back(
        {"saved for backward",
         FormatBytes(static_cast<int64_t>(*run.saved_bytes))});
  }
  add_median("gpu.power_w");
  add_median("gpu.joules_per_step");
  add_median("gpu.joules_per_token");
  NoteSpread(&section);
  return section;
}

HtmlSection CurvesSection(const RunRecords& run) {
  HtmlSection section{.title = "Training"};
  std::vector<Curve> losses = EvaluationCurves("loss", run);
  losses.insert(losses.begin(), {"loss", &run.steps, "training"});
  AddCurves({.title = "Loss", .from_zero = false}, losses, &section);
  AddCurves(BitsPerByteChart(), EvaluationCurves("bits_per_byte", run),
            &section);
  for (const char* const path :
       {"tokens_per_s", "grad_norm", "lr", "loss_scale"}) {
    AddCurves({}, {{path, &run.steps}}, &section);
  }
  AddCurves({.title = "Model FLOPs utilization", .y_title = "% of peak"},
            {{"mfu", &run.steps, "at the nominal peak"},
             {"gpu.mfu_at_clock", &run.steps, "at the clock seen"}},
            &section);
  return section;
}

HtmlSection TimeSection(const RunRecords& run) {
  HtmlSection section{.title = "Where the step's time goes"};
  AddPhaseStack(run, &section);
  AddCurves({}, {{"step_ms", &run.steps}}, &section);
  AddCurves({.title = "Between steps", .y_title = "ms per occurrence"},
            {{"phases_ms.evaluation", &run.steps, "evaluation"},
             {"phases_ms.checkpoint", &run.steps, "checkpoint"}},
            &section);
  AddBlockPhases(run, &section);
  return section;
}

HtmlSection GpuSection(const RunRecords& run) {
  HtmlSection section{.title = "GPU"};
  AddCurves({}, {{"gpu.power_w", &run.steps}}, &section);
  AddCurves({.title = "Clocks"},
            {{"gpu.sm_mhz", &run.steps}, {"gpu.memory_mhz", &run.steps}},
            &section);
  AddCurves({.title = "Busy", .y_title = "%"},
            {{"gpu.tensor_percent", &run.steps},
             {"gpu.dram_percent", &run.steps},
             {"gpu.sm_percent", &run.steps}},
            &section);
  AddCurves({}, {{"gpu.joules_per_step", &run.steps}}, &section);
  AddCurves({}, {{"gpu.celsius", &run.steps}}, &section);
  return section;
}

std::string Subtitle(const RunRecords& run) {
  const int64_t world_size = static_cast<int64_t>(
      NumberAt(run.header, "device.world_size").value_or(1));
  std::string text =
      absl::StrCat(world_size, " x ", TextAt(run.header, "device.name"));
  if (const std::string simulated = TextAt(run.header, "device.simulated");
      !simulated.empty()) {
    text = absl::StrCat("simulated: ", simulated, "; ", text);
  }
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
