#ifndef FRAMEWORK_OBSERVE_REPORT_RUN_RECORDS_H_
#define FRAMEWORK_OBSERVE_REPORT_RUN_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tessera {

// What a run has logged.
struct RunRecords {
  std::string name;               // the folder's
  nlohmann::ordered_json header;  // the "run" or the last "resume" record
  // By step; superseded records are removed (run_log.h).
  std::vector<nlohmann::ordered_json> steps, evaluations;
  // Evaluations on further sets of data, by name.
  std::map<std::string, std::vector<nlohmann::ordered_json>> validation_sets;
  std::vector<nlohmann::ordered_json> memory;  // memory_record_json.h
  std::optional<double> saved_bytes;
  int64_t resumes = 0;
  // Of the last traced steps: profile.json, and "steps_20-22". Null if no step
  // was traced.
  nlohmann::ordered_json profile;
  std::string profile_name;
  int64_t profile_first_step = 0;  // 20
};

// Reads `folder`/run.jsonl and the profile in `folder`/trace. A last line
// without its end, which a killed process leaves, is ignored. NotFound if
// `folder` is not a run's; DataLoss if a file of it is damaged.
absl::StatusOr<RunRecords> ReadRunRecords(const std::string& folder);

// The numbers at `path` of `records`, without those that have none.
std::vector<double> NumbersAt(
    const std::vector<nlohmann::ordered_json>& records, absl::string_view path);

// The last half of `records`, at least one if there is one: what is typical of
// a run once it has warmed up.
std::vector<nlohmann::ordered_json> LastHalf(
    const std::vector<nlohmann::ordered_json>& records);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_REPORT_RUN_RECORDS_H_
