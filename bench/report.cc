// Writes a page about a run, or about how two runs differ:
//   bazel run //bench:report -- runs/mine
//   bazel run //bench:report -- runs/before runs/after

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/log.h"
#include "framework/base/process.h"
#include "framework/base/status_macros.h"
#include "framework/observe/report/comparison_page.h"
#include "framework/observe/report/html_page.h"
#include "framework/observe/report/run_page.h"
#include "framework/observe/report/run_records.h"
#include "trainers/program_flags.h"
#include "trainers/version.h"

ABSL_FLAG(std::string, out, "",
          "the page; default: index.html in the run's folder, or compare.html "
          "in the second run's folder");

namespace tessera {
namespace {

absl::Status Run(const std::vector<std::string>& folders) {
  if (folders.empty() || folders.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("report takes the folder of one run, or of two runs to "
                     "compare; ",
                     folders.size(), " were given"));
  }
  std::vector<RunRecords> runs;
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(RunRecords run, ReadRunRecords(UserPath(folder)));
    runs.push_back(std::move(run));
  }
  const bool compares = runs.size() == 2;
  std::string path = UserPath(absl::GetFlag(FLAGS_out));
  if (absl::GetFlag(FLAGS_out).empty()) {
    path = absl::StrCat(UserPath(folders.back()),
                        compares ? "/compare.html" : "/index.html");
  }
  RETURN_IF_ERROR(WriteFileAtomically(
      path, RenderHtmlPage(compares ? ComparisonPage(runs[0], runs[1])
                                    : RunPage(runs[0]))));
  LogInfo(absl::StrCat("wrote ", path));
  return absl::OkStatus();
}

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(
      const std::vector<std::string> folders,
      ParseFlags(argc, argv,
                 {.usage = "writes a page with the figures and charts of a "
                           "training run: report RUN_DIR [--out=FILE]; or of "
                           "how two runs differ: report RUN_A RUN_B "
                           "[--out=FILE]",
                  .version = absl::StrCat("tessera ", kTesseraVersion)}));
  return Run(folders);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::PrepareProcess();
  return tessera::ReportAndExitCode(tessera::Main(argc, argv));
}
