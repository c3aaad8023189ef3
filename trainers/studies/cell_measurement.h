#ifndef TRAINERS_STUDIES_CELL_MEASUREMENT_H_
#define TRAINERS_STUDIES_CELL_MEASUREMENT_H_

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainers/studies/study_config.h"

namespace tessera {

// Measures one cell and returns its figures, which study_config.proto names.
// Nothing is held on the device afterwards, whatever happened.
// ResourceExhausted if the cell runs out of memory, or would by its plan;
// Unimplemented if the machine or a backend cannot run it.
absl::StatusOr<nlohmann::ordered_json> MeasureCell(const Study& study,
                                                   const StudyCell& cell);

// The figures of one kind of study each.
absl::StatusOr<nlohmann::ordered_json> MeasureTrainingCell(
    const StudyConfig& study, const RunConfig& config);
absl::StatusOr<nlohmann::ordered_json> MeasureAttentionCell(
    const StudyConfig& study, const AttentionCell& cell);
absl::StatusOr<nlohmann::ordered_json> MeasureAccumulation(
    const AccumulationStudy& cell);

}  // namespace tessera

#endif  // TRAINERS_STUDIES_CELL_MEASUREMENT_H_
