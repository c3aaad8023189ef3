#include "bench/studies/study_results.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/studies/read_results.h"
#include "bench/studies/study_loader.h"
#include "bench/studies/study_tables.h"
#include "framework/base/file.h"
#include "framework/base/file_lock.h"
#include "framework/base/json.h"
#include "framework/base/status_macros.h"
#include "framework/base/system_error.h"
#include "framework/base/text_proto.h"
#include "framework/observe/report/figures.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json Labels(const StudyCell& cell) {
  Json labels = Json::object();
  for (const auto& [axis, label] : cell.labels) labels[axis] = label;
  return labels;
}

// What a study measures, as text. Titles, tables and plots say how it is shown.
std::string MeasuredBy(StudyConfig config) {
  config.clear_title();
  config.clear_about();
  config.clear_table();
  config.clear_plot();
  return PrintWithDefaults(config);
}

bool IsFinal(const std::string& status) {
  return status != "FAILED" && status != "CRASHED";
}

// The cells with a record that still says what they would measure now, and why
// others do not.
struct Standing {
  std::set<std::string> done;
  std::vector<std::string> outdated;
};

absl::StatusOr<Standing> StandingOf(const Study& study,
                                    const std::vector<int>& wanted,
                                    const std::vector<Json>& records,
                                    const StudyMachine& machine) {
  Standing standing;
  // Cells by their device or build and this machine's, which differs.
  std::map<std::pair<std::string, std::string>, int> others;
  int changed = 0;
  const CellRecords by_name = RecordsOf(study, records);
  for (const int number : wanted) {
    const StudyCell& cell = study.cells[number];
    const auto found = by_name.find(cell.Name());
    if (found == by_name.end()) continue;
    const Json& record = *found->second;
    if (!IsFinal(TextAt(record, "status"))) continue;
    ASSIGN_OR_RETURN(const std::string config, PrintCell(study, cell));
    if (const std::string device = TextAt(record, "device");
        device != machine.device) {
      ++others[{device, machine.device}];
    } else if (const std::string build = TextAt(record, "build");
               build != machine.build) {
      ++others[{build, machine.build}];
    } else if (TextAt(record, "config") != config) {
      ++changed;
    } else {
      standing.done.insert(cell.Name());
    }
  }
  for (const auto& [of, cells] : others) {
    standing.outdated.push_back(absl::StrCat(cells, " cells are of ", of.first,
                                             ", not of ", of.second));
  }
  if (changed > 0) {
    standing.outdated.push_back(
        absl::StrCat("the config of ", changed, " cells has changed"));
  }
  return standing;
}

// The last line may have no end: the process was killed, or the disk was full.
absl::Status DropUnfinishedLine(const std::string& path, int descriptor) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const size_t end = text.rfind('\n') + 1;  // npos + 1 is 0
  if (end == text.size() || ftruncate(descriptor, end) == 0) return {};
  return SystemError(errno, absl::StrCat("cannot write ", path));
}

// Creates the file if it is missing.
absl::StatusOr<FileLock> Lock(const std::string& path) {
  absl::StatusOr<FileLock> lock = FileLock::Try(path);
  if (!absl::IsUnavailable(lock.status())) return lock;
  return absl::FailedPreconditionError(absl::StrCat(
      path,
      " is written by another process; wait for it or give another --out"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StudyResults>> StudyResults::Open(
    const std::string& folder, const Study& study,
    const std::vector<int>& wanted, const StudyMachine& machine, bool resume) {
  RETURN_IF_ERROR(MakeDirectories(folder));
  const std::string path = folder + kResultsFile;
  ASSIGN_OR_RETURN(FileLock lock, Lock(path));
  std::error_code ignored;
  const bool exists = !std::filesystem::is_empty(path, ignored);
  if (exists && !resume) {
    return absl::AlreadyExistsError(absl::StrCat(
        path,
        " holds results; add --resume to measure the cells that it lacks "
        "or give another --out"));
  }
  Standing standing;
  std::string shown;  // the study's last record
  if (exists) {
    ASSIGN_OR_RETURN(const std::vector<Json> records, ReadResults(folder));
    shown = TextAt(records[0], "study");
    const auto recorded = ParseStudy(shown, path);
    if (!recorded.ok() ||
        MeasuredBy(recorded->config) != MeasuredBy(study.config)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is of another study, or ", study.name,
                       " has changed since; give another --out"));
    }
    ASSIGN_OR_RETURN(standing, StandingOf(study, wanted, records, machine));
  }
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return SystemError(errno, absl::StrCat("cannot write ", path));
  }
  auto results =
      absl::WrapUnique(new StudyResults(path, descriptor, std::move(lock)));
  if (exists) RETURN_IF_ERROR(DropUnfinishedLine(path, descriptor));
  results->done_ = std::move(standing.done);
  results->outdated_ = std::move(standing.outdated);
  if (shown != PrintStudy(study)) {
    Json record = {{"type", "study"}, {"name", study.name}};
    record["time"] = absl::ToUnixMicros(absl::Now()) * 1e-6;
    record["study"] = PrintStudy(study);
    record["build"] = machine.build;
    RETURN_IF_ERROR(results->Write(std::move(record)));
  }
  return results;
}

absl::Status StudyResults::Append(const StudyCell& cell, const Json& record) {
  Json line = {{"type", "cell"},
               {"time", absl::ToUnixMicros(absl::Now()) * 1e-6},
               {"cell", Labels(cell)}};
  line.update(record);
  if (IsFinal(line["status"])) done_.insert(cell.Name());
  return Write(std::move(line));
}

absl::Status StudyResults::Write(Json record) {
  return WriteAll(descriptor_.fd(), DumpJson(record) + "\n", path_);
}

}  // namespace tessera
