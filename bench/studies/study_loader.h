#ifndef BENCH_STUDIES_STUDY_LOADER_H_
#define BENCH_STUDIES_STUDY_LOADER_H_

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "bench/studies/study_config.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// Reads a study and the configs of all its cells. NotFound, or InvalidArgument
// with a line for each fault, "FILE:line:column: what", or "FILE: CELL: what"
// for the config of a cell and others with the same fault.
absl::StatusOr<Study> LoadStudy(const std::string& path);

// The study as one cell sees it: its "study.FIELD=VALUE" applied.
absl::StatusOr<StudyConfig> StudyConfigOf(const Study& study,
                                          const StudyCell& cell);
// What a cell runs: a training study's, an attention study's, or one of the
// small studies of rounding.
using CellConfig = std::variant<RunConfig, AttentionCell, AccumulationStudy,
                                NormStatisticsStudy>;
absl::StatusOr<CellConfig> CellConfigOf(const Study& study,
                                        const StudyCell& cell);
// CellConfigOf() as text, with every default.
absl::StatusOr<std::string> PrintCell(const Study& study,
                                      const StudyCell& cell);

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_LOADER_H_
