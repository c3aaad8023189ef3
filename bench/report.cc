// Writes a page about a run or a study, or about how two runs differ:
//   bazel run //bench:report -- runs/mine
//   bazel run //bench:report -- docs/studies/precision
//   bazel run //bench:report -- runs/before runs/after

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/studies/read_results.h"
#include "bench/studies/study_config.h"
#include "bench/studies/study_page.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/status_macros.h"
#include "framework/observe/report/comparison_page.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_page.h"
#include "framework/observe/report/run_records.h"
#include "trainers/program_flags.h"
#include "trainers/version.h"

ABSL_FLAG(std::string, out, "",
          "the page; default: index.html in the folder, or compare.html in the "
          "second run's folder");

namespace tessera {
namespace {

bool IsStudy(const std::string& folder) {
  return FileExists(folder + kResultsFile);
}

absl::StatusOr<HtmlPage> PageOf(const std::vector<std::string>& folders) {
  if (IsStudy(folders[0])) {
    ASSIGN_OR_RETURN(const auto records, ReadResults(folders[0]));
    ASSIGN_OR_RETURN(
        const Study study,
        ParseStudy(TextAt(records[0], "study"),
                   absl::StrCat(folders[0], kResultsFile, ": study")));
    return StudyHtmlPage(study, records);
  }
  ASSIGN_OR_RETURN(const RunRecords a, ReadRunRecords(folders[0]));
  if (folders.size() == 1) return RunPage(a);
  ASSIGN_OR_RETURN(const RunRecords b, ReadRunRecords(folders[1]));
  return ComparisonPage(a, b);
}

absl::Status Run(std::vector<std::string> folders) {
  if (folders.empty() || folders.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("report takes the folder of a run or a study, or of two "
                     "runs to compare; ",
                     folders.size(), " were given"));
  }
  for (std::string& folder : folders) {
    folder = UserPath(folder);
    if (folders.size() == 2 && IsStudy(folder)) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder,
                       " is a study's folder; only runs can be compared: give "
                       "the study's folder without another"));
    }
  }
  ASSIGN_OR_RETURN(const HtmlPage page, PageOf(folders));
  std::string path = UserPath(absl::GetFlag(FLAGS_out));
  if (absl::GetFlag(FLAGS_out).empty()) {
    path = absl::StrCat(folders.back(),
                        folders.size() == 2 ? "/compare.html" : "/index.html");
  }
  RETURN_IF_ERROR(WriteFileAtomically(path, RenderHtmlPage(page)));
  LogInfo(absl::StrCat("wrote ", path));
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::RunProgramWithArguments(
      argc, argv,
      {.usage = "writes a page with the figures and charts of a training run "
                "or a study: report DIR [--out=FILE]; or of how two runs "
                "differ: report RUN_A RUN_B [--out=FILE]",
       .version = absl::StrCat("tessera ", tessera::kTesseraVersion)},
      tessera::Run);
}
