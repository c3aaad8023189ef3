#ifndef BENCH_STUDIES_STUDY_LOADER_H_
#define BENCH_STUDIES_STUDY_LOADER_H_

#include <string>

#include "absl/status/statusor.h"
#include "bench/studies/study_config.h"
#include "trainers/config/run_config.pb.h"

namespace tessera {

// Reads a study and the configs of all its cells. NotFound, or InvalidArgument
// with a line for each fault, "FILE:line:column: what", or "FILE: CELL: what"
// for the config of a cell and others with the same fault.
absl::StatusOr<Study> LoadStudy(const std::string& path);

// What a cell of a training study runs; of an attention study; of a study of
// accumulation.
absl::StatusOr<RunConfig> RunConfigOf(const Study& study,
                                      const StudyCell& cell);
// The study as one cell sees it: its "study.FIELD=VALUE" applied.
absl::StatusOr<StudyConfig> StudyConfigOf(const Study& study,
                                          const StudyCell& cell);
absl::StatusOr<AttentionCell> AttentionCellOf(const Study& study,
                                              const StudyCell& cell);
absl::StatusOr<AccumulationStudy> AccumulationOf(const Study& study,
                                                 const StudyCell& cell);
// The same as text, with every default.
absl::StatusOr<std::string> PrintCell(const Study& study,
                                      const StudyCell& cell);

}  // namespace tessera

#endif  // BENCH_STUDIES_STUDY_LOADER_H_
