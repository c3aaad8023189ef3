#ifndef BENCH_MEASURE_CELL_MEASUREMENT_H_
#define BENCH_MEASURE_CELL_MEASUREMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/measure/attention_case.h"
#include "bench/studies/study_config.h"
#include "bench/studies/study_loader.h"
#include "nlohmann/json.hpp"

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

// A cell with its study's and its own config.
struct OpenedCell {
  StudyConfig study;  // as the cell sees it
  CellConfig config;
  std::string snapshot_folder;  // a snapshot's own
};
using FigureNames = absl::StatusOr<std::vector<absl::string_view>>;
using CellFigures = absl::StatusOr<nlohmann::ordered_json>;

// The kinds of cells that are not rows of Measurements(): the names of their
// figures, which are the same in all studies, and the figures.
FigureNames AttentionFigures(const Study& study);
CellFigures MeasureAttentionCell(const OpenedCell& cell);
FigureNames AccumulationFigures(const Study& study);
CellFigures MeasureAccumulation(const OpenedCell& cell);
FigureNames NormStatisticsFigures(const Study& study);
CellFigures MeasureNormStatistics(const OpenedCell& cell);
FigureNames MemoryFormatsFigures(const Study& study);
CellFigures MeasureMemoryFormats(const OpenedCell& cell);

// The dtype of a study of rounding; UNSPECIFIED is FP32.
inline at::ScalarType ScalarTypeOf(AccumulationStudy::Dtype dtype) {
  return DtypeNamed(AccumulationStudy::Dtype_Name(dtype)).value_or(at::kFloat);
}

}  // namespace tessera

#endif  // BENCH_MEASURE_CELL_MEASUREMENT_H_
