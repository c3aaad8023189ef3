#include "bench/measure/cell_measurement.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "framework/base/status_macros.h"

namespace tessera {

absl::StatusOr<nlohmann::ordered_json> MeasureCell(const Study& study,
                                                   const StudyCell& cell,
                                                   const std::string& folder) {
  ASSIGN_OR_RETURN(const StudyConfig study_config, StudyConfigOf(study, cell));
  switch (study_config.measure_case()) {
    case StudyConfig::kTraining: {
      ASSIGN_OR_RETURN(const RunConfig config, RunConfigOf(study, cell));
      return MeasureTrainingCell(
          study_config, config,
          absl::StrCat(folder, "/snapshots/",
                       absl::StrReplaceAll(cell.Name(), {{" ", "_"}})));
    }
    case StudyConfig::kAttention: {
      ASSIGN_OR_RETURN(const AttentionCell config,
                       AttentionCellOf(study, cell));
      return MeasureAttentionCell(study_config, config);
    }
    case StudyConfig::kAccumulation: {
      ASSIGN_OR_RETURN(const AccumulationStudy config,
                       AccumulationOf(study, cell));
      return MeasureAccumulation(config);
    }
    case StudyConfig::MEASURE_NOT_SET:
      break;
  }
  return absl::InternalError("a study that passed Validate() measures nothing");
}

}  // namespace tessera
