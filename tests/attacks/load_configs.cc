// Loads and plans the configs that it reads from stdin, for config_attack_test:
// one process handles thousands in the time of a few starts of `train`.
//
// Each line of stdin is {"config": [PATH, ...], "set": [FIELD=VALUE, ...]}, the
// values of --config and --set. The printed config is written to PATH.printed,
// next to the last file. For each line the program writes the output of `train
// --dry_run` to stderr, and then to stdout
//
//   answer: [STAGE, CODE]
//
// STAGE is the last stage reached: "load", "print", "plan" or "done". CODE is
// the exit code that `train` would have.

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/base/text_proto.h"
#include "nlohmann/json.hpp"
#include "trainers/config/config_loader.h"
#include "trainers/plan/dry_run.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/start_check.h"

namespace tessera {
namespace {

// Checks that a printed config is a config of the same run.
absl::Status CheckRoundTrip(const RunConfig& config, const std::string& path) {
  const std::string printed = PrintWithDefaults(config);
  RETURN_IF_ERROR(WriteFileAtomically(path, printed));
  ASSIGN_OR_RETURN(const RunConfig again, LoadRunConfig({path}, {}));
  if (PrintWithDefaults(again) == printed) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("--print_config prints another config of what it printed; ",
                   "see ", path));
}

absl::Status LoadAndPlan(const nlohmann::json& task, std::string* stage) {
  const auto paths = task["config"].get<std::vector<std::string>>();
  *stage = "load";
  ASSIGN_OR_RETURN(
      const RunConfig config,
      LoadRunConfig(paths, task["set"].get<std::vector<std::string>>()));
  *stage = "print";
  RETURN_IF_ERROR(CheckRoundTrip(config, paths.back() + ".printed"));
  *stage = "plan";
  ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(config, WorldInfo()));
  FormatDryRun(plan, FindWhatFits(plan));
  RETURN_IF_ERROR(CheckCanStart(plan, paths.back() + ".run", "auto"));
  *stage = "done";
  return absl::OkStatus();
}

void Main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::string stage;
    const nlohmann::json task = nlohmann::json::parse(line);
    const absl::Status status = LoadAndPlan(task, &stage);
    const int code = ReportAndExitCode(
        WithConfigSource(status, task["config"].get<std::vector<std::string>>(),
                         task["set"].get<std::vector<std::string>>()));
    const nlohmann::json answer = {stage, code};
    std::cout << "answer: " << answer << std::endl;
  }
}

}  // namespace
}  // namespace tessera

int main() { tessera::Main(); }
