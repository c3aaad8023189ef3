#include "framework/observe/report/run_records.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

void RemoveAfter(double step, std::vector<Json>* records) {
  std::erase_if(*records, [&](const Json& record) {
    return *NumberAt(record, "step") > step;
  });
}

// False if `record` is no record of a run.
bool Add(Json record, RunRecords* run) {
  const std::string type = TextAt(record, "type");
  if (type == "run") {
    run->header = std::move(record);
    return true;
  }
  const std::optional<double> step = NumberAt(record, "step");
  if (type == "step" || type == "eval" || type == "memory") {
    if (!step.has_value()) return false;
    const std::string set = TextAt(record, "set");
    (type == "step"     ? run->steps
     : type == "memory" ? run->memory
     : set.empty()      ? run->evaluations
                        : run->validation_sets[set])
        .push_back(std::move(record));
  } else if (type == "resume") {
    if (!step.has_value()) return false;
    RemoveAfter(*step, &run->steps);
    RemoveAfter(*step, &run->evaluations);
    for (auto& [name, records] : run->validation_sets) {
      RemoveAfter(*step, &records);
    }
    RemoveAfter(*step, &run->memory);
    ++run->resumes;
    run->header = std::move(record);
  } else if (type == "saved") {
    run->saved_bytes = NumberAt(record, "bytes");
  }
  return !type.empty();
}

absl::Status ReadLog(const std::string& path, RunRecords* run) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  for (size_t i = 0; i < lines.size(); ++i) {
    Json record = ParseJson<Json>(lines[i]);
    if (record.is_discarded() || !Add(std::move(record), run)) {
      return absl::DataLossError(absl::StrCat(
          path, ":", i + 1,
          ": is no record of a run; remove the line to see the others"));
    }
  }
  if (run->header.is_null()) {
    return absl::DataLossError(
        absl::StrCat(path, " has no record of a run's start"));
  }
  return absl::OkStatus();
}

// 20 for ".../steps_20-22/profile.json".
int64_t FirstStep(const std::string& path) {
  const std::string folder =
      std::filesystem::path(path).parent_path().filename();
  const absl::string_view name = absl::StripPrefix(folder, "steps_");
  int64_t step = -1;
  (void)absl::SimpleAtoi(name.substr(0, name.find('-')), &step);
  return step;
}

absl::Status ReadProfile(const std::string& folder, RunRecords* run) {
  const std::string traces = folder + "/trace";
  if (!FileExists(traces)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(traces));
  std::string newest;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(traces, "/", name, "/profile.json");
    if (FileExists(path) &&
        (newest.empty() || FirstStep(path) >= FirstStep(newest))) {
      newest = path;
      run->profile_name = name;
      run->profile_first_step = FirstStep(path);
    }
  }
  if (newest.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(newest));
  run->profile = ParseJson<Json>(text);
  if (run->profile.is_object()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      newest, " is damaged: it is no JSON object; remove it to see the rest"));
}

}  // namespace

absl::StatusOr<RunRecords> ReadRunRecords(const std::string& folder) {
  const std::string log = folder + "/run.jsonl";
  ASSIGN_OR_RETURN(const bool exists, PathExists(folder));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat("there is no folder ", folder));
  }
  if (!FileExists(log)) {
    return absl::NotFoundError(absl::StrCat(
        folder,
        " has neither run.jsonl, as the folder of a run, nor results.jsonl, as "
        "that of a study; give the --out of a training run or a study"));
  }
  RunRecords run;
  const std::filesystem::path path =
      std::filesystem::path(folder).lexically_normal();
  run.name =
      path.has_filename() ? path.filename() : path.parent_path().filename();
  RETURN_IF_ERROR(ReadLog(log, &run));
  RETURN_IF_ERROR(ReadProfile(folder, &run));
  return run;
}

std::vector<double> NumbersAt(const std::vector<Json>& records,
                              absl::string_view path) {
  std::vector<double> numbers;
  for (const Json& record : records) {
    if (const auto number = NumberAt(record, path)) numbers.push_back(*number);
  }
  return numbers;
}

std::vector<Json> LastHalf(const std::vector<Json>& records) {
  return {records.begin() + records.size() / 2, records.end()};
}

}  // namespace tessera
