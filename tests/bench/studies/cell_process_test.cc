#include "bench/studies/cell_process.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using Statuses = std::vector<std::pair<int, std::string>>;

// RunCells() of two cells with a shell script as the worker: $1 is
// --worker_cells=..., $pipe the pipe.
absl::Status RunScript(const std::string& script, Statuses* statuses) {
  Study study;
  study.cells.resize(2);
  return RunCells(
      study, {0, 1}, {"/bin/sh", "-c", "pipe=/proc/$$/fd/200; " + script},
      [] { return 0; },
      [&](int cell, const Json& record) {
        statuses->emplace_back(cell, record["status"]);
        return absl::OkStatus();
      });
}

TEST(RunCellsTest, AWorkerThatDiesInACellLosesOnlyThat) {
  Statuses statuses;
  const absl::Status status = RunScript(
      R"(case $1 in
      *0,1) echo '{"cell":0}' >$pipe; kill -9 $$ ;;
      *) echo '{"cell":1,"status":"OK"}' >$pipe ;;
      esac)",
      &statuses);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(statuses, (Statuses{{0, "CRASHED"}, {1, "OK"}}));
}

TEST(RunCellsTest, AWorkerMayDieBeforeItSaysThatItHasBegunACell) {
  Statuses statuses;
  const absl::Status status = RunScript(
      R"(printf '{"cell":0}\n{"cell":0,"status":"OK"}\n{"ce' >$pipe
      kill -9 $$)",
      &statuses);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(statuses, (Statuses{{0, "OK"}, {1, "CRASHED"}}));
}

TEST(RunCellsTest, AWorkerThatSaysNothingEndsTheStudy) {
  Statuses statuses;
  const absl::Status status = RunScript("exit 3", &statuses);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "exit code 3")) << status;
  EXPECT_TRUE(statuses.empty());
}

}  // namespace
}  // namespace tessera
