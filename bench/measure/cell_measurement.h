#ifndef BENCH_MEASURE_CELL_MEASUREMENT_H_
#define BENCH_MEASURE_CELL_MEASUREMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/studies/study_config.h"
#include "nlohmann/json.hpp"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// Measures one cell and returns its figures, which study_config.proto names.
// Files that it writes are in the study's `folder`. Nothing is held on the
// device afterwards, whatever happened. ResourceExhausted if the cell runs out
// of memory, or would by its plan; Unimplemented if the machine or a backend
// cannot run it.
absl::StatusOr<nlohmann::ordered_json> MeasureCell(const Study& study,
                                                   const StudyCell& cell,
                                                   const std::string& folder);

// InvalidArgument if a table or chart shows a figure that no cell records.
absl::Status CheckFigures(const Study& study);

// The names of an attention cell's figures.
std::vector<absl::string_view> AttentionFigures();
// The figures of the cells of one kind of study each.
absl::StatusOr<nlohmann::ordered_json> MeasureAttentionCell(
    const StudyConfig& study, const AttentionCell& cell);
absl::StatusOr<nlohmann::ordered_json> MeasureAccumulation(
    const AccumulationStudy& cell);
std::vector<absl::string_view> MemoryFormatsFigures();
absl::StatusOr<nlohmann::ordered_json> MeasureMemoryFormats(
    const MemoryFormatsStudy& study, RunConfig config);

}  // namespace tessera

#endif  // BENCH_MEASURE_CELL_MEASUREMENT_H_
