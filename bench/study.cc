// Measures training over a grid of configs and writes tables:
//   bazel run //bench:study -- --study=configs/studies/precision.pbtxt

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "bench/measure/attention_case.h"
#include "bench/measure/cell_measurement.h"
#include "bench/studies/cell_process.h"
#include "bench/studies/read_results.h"
#include "bench/studies/study_config.h"
#include "bench/studies/study_loader.h"
#include "bench/studies/study_page.h"
#include "bench/studies/study_results.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/observe/format.h"
#include "trainers/build_info.h"
#include "trainers/program_flags.h"
#include "trainers/resume_command.h"
#include "trainers/run/stop_signal.h"

namespace {

// Abseil keeps the last value of a flag; --filter wants all of them.
std::vector<std::string>& Filters() {
  static auto* filters = new std::vector<std::string>;
  return *filters;
}

}  // namespace

ABSL_FLAG(std::string, study, "",
          "the study, a text proto of tessera.StudyConfig: "
          "configs/studies/NAME.pbtxt; required");
ABSL_FLAG(std::string, out, "",
          "folder for results.jsonl, README.md and index.html; default: "
          "runs/studies/NAME");
ABSL_FLAG(bool, resume, false,
          "measure only the cells that --out does not have yet");
ABSL_FLAG(std::string, filter, "",
          "AXIS=VALUE,...: only the cells with one of these values; may be "
          "repeated for other axes")
    .OnUpdate([] {
      const std::string value = absl::GetFlag(FLAGS_filter);
      if (!value.empty()) Filters().push_back(value);
    });
ABSL_FLAG(bool, list, false, "print the study's cells and exit");
ABSL_FLAG(std::vector<std::string>, worker_cells, {},
          "for the study's own worker processes");
ABSL_FLAG(int, worker_pipe, -1, "for the study's own worker processes");

namespace tessera {
namespace {

std::string OutFolder(const Study& study) {
  const std::string out = absl::GetFlag(FLAGS_out);
  return UserPath(out.empty() ? absl::StrCat("runs/studies/", study.name)
                              : out);
}

absl::Status Work(const Study& study) {
  std::vector<int> cells;
  for (const std::string& text : absl::GetFlag(FLAGS_worker_cells)) {
    int cell = -1;
    if (!absl::SimpleAtoi(text, &cell)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--worker_cells: '", text, "' is no number"));
    }
    cells.push_back(cell);
  }
  return WorkOnCells(study, cells, OutFolder(study),
                     absl::GetFlag(FLAGS_worker_pipe));
}

// "small 128 BF16".
std::string LabelsOf(const StudyCell& cell) {
  std::string text;
  for (const auto& [axis, label] : cell.labels) {
    absl::StrAppend(&text, text.empty() ? "" : " ", label);
  }
  return text;
}

// "[ 3/60] small 128 BF16: OK, 2m10s left".
void PrintProgress(const StudyCell& cell, const nlohmann::ordered_json& record,
                   size_t done, size_t all, absl::Duration elapsed) {
  const absl::Duration left =
      elapsed / static_cast<double>(done) * static_cast<double>(all - done);
  const std::string message = record.value("message", "");
  absl::PrintF("[%*d/%d] %s: %s%s%s, %s left\n",
               static_cast<int>(absl::StrCat(all).size()),
               static_cast<int>(done), static_cast<int>(all), LabelsOf(cell),
               record["status"].get<std::string>(), message.empty() ? "" : ", ",
               message.substr(0, 200), FormatElapsed(left));
  FlushConsole(stdout);
}

// What runs this study, without --out.
std::string Command() {
  return absl::StrCat(CommandPrefix(ProcessArguments()[0], "//bench:study"),
                      " --study=", absl::GetFlag(FLAGS_study));
}

// Without the device unless a resume needs it: asking for it keeps the GPU's
// driver loaded, so that workers may start faster.
StudyMachine Machine() {
  return {absl::GetFlag(FLAGS_resume) ? BenchDeviceName() : "", BuildSummary()};
}

absl::Status RunStudy(const Study& study, const std::vector<int>& wanted) {
  const std::string folder = OutFolder(study);
  RETURN_IF_ERROR(CheckHoldsNothingElse(folder));
  ASSIGN_OR_RETURN(std::unique_ptr<StudyResults> results,
                   StudyResults::Open(folder, study, wanted, Machine(),
                                      absl::GetFlag(FLAGS_resume)));
  for (const std::string& reason : results->outdated()) {
    LogInfo(absl::StrCat("measures again: ", reason));
  }
  std::vector<int> cells;
  for (const int cell : wanted) {
    if (!results->Has(study.cells[cell])) cells.push_back(cell);
  }
  if (!cells.empty() && BuildCommit().empty()) {
    LogInfo(
        "the records carry no commit; for records that do, start the study "
        "with bazel run //bench:study in a git checkout, or from a bundle (see "
        "bazel run //tools/bundle)");
  }
  const std::string command = Command();
  size_t done = 0;
  const absl::Time begin = MonotonicNow();
  StopSignal stop;
  const absl::Status status = RunCells(
      study, cells,
      {"/proc/self/exe", absl::StrCat("--study=", absl::GetFlag(FLAGS_study)),
       absl::StrCat("--out=", folder)},
      [&] { return stop.received(); },
      [&](int cell, const nlohmann::ordered_json& record) -> absl::Status {
        RETURN_IF_ERROR(results->Append(study.cells[cell], record));
        PrintProgress(study.cells[cell], record, ++done, cells.size(),
                      MonotonicNow() - begin);
        return absl::OkStatus();
      });
  // Also after an error: finished cells are worth a page.
  ASSIGN_OR_RETURN(const std::vector<nlohmann::ordered_json> records,
                   ReadResults(folder));
  const absl::Status written = WriteStudyPage(folder, study, records, command);
  if (absl::IsCancelled(status)) {
    LogInfo(absl::StrCat(done, " of ", cells.size(),
                         " cells are done; continue "
                         "with: ",
                         command, " --out=", folder, " --resume"));
  }
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(written);
  LogInfo(absl::StrCat("wrote ", folder, "/README.md and index.html"));
  return absl::OkStatus();
}

absl::Status Run() {
  const std::string path = absl::GetFlag(FLAGS_study);
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "--study is required: --study=configs/studies/NAME.pbtxt");
  }
  ASSIGN_OR_RETURN(const Study study, LoadStudy(path));
  if (absl::GetFlag(FLAGS_worker_pipe) >= 0) return Work(study);
  if (const absl::Status shown = CheckFigures(study); !shown.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", shown.message()));
  }
  ASSIGN_OR_RETURN(const std::vector<int> cells, FilterCells(study, Filters()));
  if (absl::GetFlag(FLAGS_list)) {
    for (const int cell : cells) {
      absl::PrintF("%s\n", study.cells[cell].Name());
    }
    return absl::OkStatus();
  }
  return RunStudy(study, cells);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgram(
      argc, argv,
      {.usage = "measures training over a grid of configs and writes tables: "
                "study --study=configs/studies/NAME.pbtxt [--out=DIR] "
                "[--filter=AXIS=VALUE,...]... [--resume]",
       .version = tessera::BuildSummary()},
      [] { return tessera::StatusFromTorchOr(tessera::Run); });
}
