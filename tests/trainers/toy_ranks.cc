#include "tests/trainers/toy_ranks.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch_tests.h"
#include "tests/trainers/program.h"
#include "tests/trainers/toy_session.h"
#include "trainers/config/config_loader.h"
#include "trainers/run/checkpoint_agreement.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

// [[folder, resume, set, ...], ...] as JSON.
constexpr char kRuns[] = "TOY_RANKS_RUNS";
// Where ranks leave notes for each other.
constexpr char kNotes[] = "TOY_RANKS_NOTES";

absl::Status TrainAsRank(const WorldInfo& world, const ToyRun& run) {
  std::vector<std::string> sets = ToySets();
  sets.insert(sets.end(), run.sets.begin(), run.sets.end());
  ASSIGN_OR_RETURN(const RunConfig config,
                   LoadRunConfig({kToyConfigFile}, sets));
  ASSIGN_OR_RETURN(RunPlan plan, PlanRun(config, world));
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, ConnectRanks(plan));
  ASSIGN_OR_RETURN(RunFolder folder, OpenRunFolder(run.folder, run.resume,
                                                   /*writes=*/plan.is_writer(),
                                                   VerifiedShareOf(world)));
  RETURN_IF_ERROR(OpenInitialWeights(config.checkpoint(), &folder));
  RETURN_IF_ERROR(AgreeOnCheckpoints(group.get(), plan.device.device, &folder));
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(std::move(plan), std::move(group), {}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(session), std::move(folder), {}));
  return trainer->Run();
}

TEST(ToyRanksWorker, DISABLED_Train) {
  const auto world = WorldFromEnvironment();
  ASSERT_TRUE(world.ok()) << world.status();
  int done = 0;
  for (const std::vector<std::string> run :
       nlohmann::json::parse(std::getenv(kRuns))) {
    const KeepDeterminism keep;
    const absl::Status status =
        TrainAsRank(*world, {.folder = run[0],
                             .sets = {run.begin() + 2, run.end()},
                             .resume = run[1]});
    ASSERT_TRUE(status.ok()) << run[0] << ": " << status;
    AwaitOtherRanks(*world, std::getenv(kNotes), absl::StrCat("run_", done++));
  }
}

}  // namespace

void AwaitOtherRanks(const WorldInfo& world, const std::string& notes,
                     const std::string& name) {
  const auto note = [&](int rank) {
    return absl::StrCat(notes, "/", name, "_", rank);
  };
  ASSERT_TRUE(WriteFileAtomically(note(world.rank), "").ok());
  for (int rank = 0; rank < world.world_size; ++rank) {
    // The launcher ends this rank if another has failed.
    while (!FileExists(note(rank))) absl::SleepFor(absl::Milliseconds(5));
  }
}

void TrainToys(int ranks, const std::vector<ToyRun>& runs) {
  nlohmann::json all;
  for (const ToyRun& run : runs) {
    std::vector<std::string> fields = {run.folder, run.resume};
    fields.insert(fields.end(), run.sets.begin(), run.sets.end());
    all.push_back(fields);
  }
  const std::string notes = Folder("toy_ranks_notes");
  ASSERT_TRUE(MakeDirectories(notes).ok());
  const LaunchedTests launched = LaunchTests(
      "ToyRanksWorker.*", {.nproc = ranks,
                           .environment = {{kRuns, all.dump()},
                                           {kNotes, notes},
                                           {"OMP_NUM_THREADS", "1"}},
                           .timeout = absl::Minutes(5)});
  EXPECT_EQ(launched.exit_code, 0) << launched.output;
}

}  // namespace tessera
