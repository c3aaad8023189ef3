#ifndef BENCH_STUDIES_READ_RESULTS_H_
#define BENCH_STUDIES_READ_RESULTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tessera {

// In a study's folder; study_results.h describes it.
inline constexpr char kResultsFile[] = "/results.jsonl";

// The newest record of the study, which is first, and of each cell in
// `folder`/results.jsonl. An unfinished last line is left out. DataLoss, which
// names the line, if another is no record of a study.
absl::StatusOr<std::vector<nlohmann::ordered_json>> ReadResults(
    const std::string& folder);

}  // namespace tessera

#endif  // BENCH_STUDIES_READ_RESULTS_H_
