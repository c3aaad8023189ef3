#ifndef FRAMEWORK_OBSERVE_REPORT_RUN_CHARTS_H_
#define FRAMEWORK_OBSERVE_REPORT_RUN_CHARTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_records.h"
#include "framework/observe/step_record.h"
#include "nlohmann/json.hpp"

namespace tessera {

// A curve over the steps of a run.
struct Curve {
  absl::string_view figure;  // path in the records: "gpu.power_w"
  const std::vector<nlohmann::ordered_json>* records = nullptr;
  std::string name;  // default: the figure's title
};

// `figure` of a run's evaluations: "validation", and by name each further set
// of data. Names begin with `prefix`, "A, ".
std::vector<Curve> EvaluationCurves(absl::string_view figure,
                                    const RunRecords& run,
                                    absl::string_view prefix = "");

// For curves of "bits_per_byte".
Chart BitsPerByteChart();

// The field of the records at `path`, "gpu.power_w"; null if there is none.
const StepField* FindStepField(absl::string_view path);

// Adds `chart`, which has only titles, with the curves that have data to
// `section`, if any has. Its titles default to the first figure's.
void AddCurves(Chart chart, const std::vector<Curve>& curves,
               HtmlSection* section);

// Adds bars of the time of each phase of a step, over the steps; neighbouring
// records are averaged if there are many.
void AddPhaseStack(const RunRecords& run, HtmlSection* section);

// Adds bars of the time in each block of the last record that has blocks.
void AddBlockPhases(const RunRecords& run, HtmlSection* section);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_RUN_CHARTS_H_
