#ifndef BENCH_MEASURE_MEASUREMENT_H_
#define BENCH_MEASURE_MEASUREMENT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "bench/measure/training_cell.h"
#include "bench/studies/study_config.pb.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What a training study can record: a row of the table of measurements.
struct Measurement {
  // UNSPECIFIED: in every cell.
  TrainingStudy::Record record = TrainingStudy::UNSPECIFIED;
  // The figures that it adds, or adds to; study_config.proto says what they
  // are.
  std::vector<absl::string_view> figures;
  CellNeeds needs;
  // Null if it only changes what others do.
  absl::Status (*measure)(TrainingCell& cell, nlohmann::ordered_json& figures);
};

// In the order in which they are made.
absl::Span<const Measurement> Measurements();

// The longer rows' functions. One of the first two opens the cell; the peak of
// memory is measured before calls that are no whole steps.
absl::Status MeasureSetUp(TrainingCell& cell, nlohmann::ordered_json& figures);
absl::Status MeasureStartUp(TrainingCell& cell,
                            nlohmann::ordered_json& figures);
absl::Status MeasureCounters(TrainingCell& cell,
                             nlohmann::ordered_json& figures);
absl::Status MeasureStep(TrainingCell& cell, nlohmann::ordered_json& figures);
absl::Status MeasurePeakMemory(TrainingCell& cell,
                               nlohmann::ordered_json& figures);
absl::Status MeasureParts(TrainingCell& cell, nlohmann::ordered_json& figures);
absl::Status MeasurePhases(TrainingCell& cell, nlohmann::ordered_json& figures);
absl::Status MeasureKernels(TrainingCell& cell,
                            nlohmann::ordered_json& figures);
absl::Status MeasureAllocations(TrainingCell& cell,
                                nlohmann::ordered_json& figures);
absl::Status MeasureTimelines(TrainingCell& cell,
                              nlohmann::ordered_json& figures);
// InvalidArgument if the context is too short to time a token.
absl::Status MeasureDecode(TrainingCell& cell, nlohmann::ordered_json& figures);
absl::Status WriteSnapshot(TrainingCell& cell, nlohmann::ordered_json& figures);

// The bytes that a token at the end of the context must read, for all texts:
// each weight but the embedding's other rows, and the keys and values that each
// layer sees.
double BytesOfToken(const RunPlan& plan);

}  // namespace tessera

#endif  // BENCH_MEASURE_MEASUREMENT_H_
