// Several ranks that write and read checkpoints of many files together.

#include <ATen/ATen.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/dist/world.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch_tests.h"
#include "tests/trainers/toy_ranks.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/checkpoint_agreement.h"
#include "trainers/run/checkpoint_saver.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFolder[] = "SHARED_SAVING_TEST_FOLDER";
constexpr char kSaves[] = "SHARED_SAVING_TEST_SAVES";  // Saves as JSON
constexpr char kSteps[] = "SHARED_SAVING_TEST_STEPS";
constexpr char kScenario[] = "SHARED_SAVING_TEST_SCENARIO";

// The toy's state has about fifteen such files.
constexpr uint64_t kMaxFileBytes = 16 << 10;

// Which state of step 2 ranks save: that of the checkpoint `from`, or, if that
// is empty, one that they train.
struct Save {
  std::string to, from;
  std::vector<std::string> sets;
};

void from_json(const nlohmann::json& json, Save& save) {
  json.at("to").get_to(save.to);
  json.at("from").get_to(save.from);
  json.at("sets").get_to(save.sets);
}

void to_json(nlohmann::json& json, const Save& save) {
  json = {{"to", save.to}, {"from", save.from}, {"sets", save.sets}};
}

absl::Status SaveAsRank(const WorldInfo& world, const Save& save) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<Session> session,
      Session::Create(ToyConfig("configs/tiny_cpu.pbtxt", save.sets), {}));
  if (save.from.empty()) {
    Train(*session, 2);
  } else {
    ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                     OpenCheckpoint(save.from, VerifiedShareOf(world)));
    RETURN_IF_ERROR(Restore(*checkpoint, session->state()));
  }
  const std::vector<int> ranks = session->plan().layout.checkpoint_ranks();
  const auto own = std::find(ranks.begin(), ranks.end(), world.rank);
  if (own == ranks.end()) {
    RETURN_IF_ERROR(
        CheckpointSaver::TakePart(session->state(), &session->step()));
  } else {
    CheckpointSaver saver(session->state(), &session->step(),
                          {.ranks = ranks,
                           .index = static_cast<int>(own - ranks.begin()),
                           .max_file_bytes = kMaxFileBytes});
    RETURN_IF_ERROR(saver.Start({.directory = save.to,
                                 .step = 2,
                                 .begun = MonotonicNow(),
                                 .state = ExportState(session->state())},
                                /*waits=*/false));
    RETURN_IF_ERROR(saver.Collect(/*waits=*/true)->status);
  }
  return session->FinishGroup();
}

TEST(SharedSavingWorker, DISABLED_Save) {
  const auto world = WorldFromEnvironment();
  ASSERT_TRUE(world.ok()) << world.status();
  int done = 0;
  for (const Save& save :
       nlohmann::json::parse(std::getenv(kSaves)).get<std::vector<Save>>()) {
    const KeepDeterminism keep;
    const absl::Status status = SaveAsRank(*world, save);
    ASSERT_TRUE(status.ok()) << save.to << ": " << status;
    AwaitOtherRanks(*world, std::getenv(kFolder), absl::StrCat(done++));
  }
}

// What happens to a rank in the save of step 4.
WritePointHook HookOf(const std::string& scenario, int rank) {
  return [=](absl::string_view operation) {
    if (!absl::StrContains(operation, CheckpointName(4))) return;
    const bool creates = absl::StrContains(operation, "create ");
    if (rank == 1 && creates && scenario == "kill 1") raise(SIGKILL);
    if (rank == 1 && scenario == "full disk of 1") {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit = {kMaxFileBytes / 4, kMaxFileBytes / 4};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (rank == 0 && absl::StartsWith(operation, "rename ") &&
        scenario == "kill 0") {
      raise(SIGKILL);
    }
    if (rank == 0 && absl::StartsWith(operation, "rename ") &&
        scenario == "all fail") {
      absl::SleepFor(absl::Seconds(8));
    }
  };
}

// Ends the run after step 5.
class FailingObserver : public RunObserver {
 public:
  absl::Status OnStepEnd(int64_t step) override {
    return step == 5 ? absl::DataLossError("fails") : absl::OkStatus();
  }
};

absl::Status TrainAsRank() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(
      RunPlan plan,
      PlanRun(ToyConfig(
                  "configs/tiny_cpu.pbtxt",
                  {absl::StrCat("training.steps=", std::getenv(kSteps)),
                   "training.sample_tokens_at_end=0", "training.eval_batches=0",
                   "layout.zero=2", "training.deterministic=true",
                   "checkpoint={every_steps: 2 keep_last: 9}"}),
              world));
  const std::string scenario = std::getenv(kScenario);
  const bool verifies_slowly = scenario == "slow verification of 1";
  GroupTimeouts timeouts{.peer = absl::Seconds(3)};
  if (verifies_slowly) timeouts.collective = absl::Seconds(6);
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                   ConnectRanks(plan, timeouts));
  ASSIGN_OR_RETURN(RunFolder run, OpenRunFolder(std::getenv(kFolder), "auto",
                                                /*writes=*/world.rank == 0,
                                                VerifiedShareOf(world)));
  if (verifies_slowly && world.rank == 1) absl::SleepFor(absl::Seconds(10));
  RETURN_IF_ERROR(AgreeOnCheckpoints(group.get(), plan.device.device, &run));
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(std::move(plan), std::move(group), {}));
  FailingObserver failing;
  TrainerOptions options{.write_point = HookOf(scenario, world.rank),
                         .max_file_bytes = kMaxFileBytes};
  if (scenario == "all fail") options.observers = {&failing};
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Trainer> trainer,
      Trainer::Create(std::move(session), std::move(run), std::move(options)));
  return trainer->Run();
}

TEST(SharedSavingWorker, DISABLED_Train) {
  const KeepDeterminism keep;
  const absl::Status status = TrainAsRank();
  EXPECT_TRUE(status.ok()) << status;
}

LaunchedTests Launch(const std::string& worker, int ranks,
                     std::vector<std::pair<std::string, std::string>> env) {
  LaunchOptions options;
  options.nproc = ranks;
  options.environment = std::move(env);
  options.timeout = absl::Minutes(2);
  return LaunchTests("SharedSavingWorker." + worker, std::move(options));
}

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/shared_saving_", name, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder;
}

// The tensor files of a checkpoint and their indices, by name.
std::map<std::string, std::string> TensorFilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  const auto names = ListDirectory(folder);
  EXPECT_TRUE(names.ok()) << names.status();
  if (!names.ok()) return files;
  for (const std::string& name : *names) {
    if (absl::StrContains(name, ".safetensors")) {
      files[name] = ReadFile(absl::StrCat(folder, "/", name)).value();
    }
  }
  return files;
}

// Ranks with these layouts, one after another.
struct Ranks {
  int count;
  std::vector<std::string> layouts;
};

// Each layout loads what the one before has saved.
TEST(SharedSavingTest, EveryLayoutLoadsAndSavesTheSameFiles) {
  const std::vector<std::vector<std::string>> models = {
      {"precision.mode=FP32", "model.tied_head=true"},
      {"precision.mode=BF16", "model.frozen=[\"layers.0.*\"]"}};
  // By model.
  std::vector<std::string> from(models.size());
  std::vector<std::map<std::string, std::string>> expected(models.size());
  for (const auto& [count, layouts] : std::vector<Ranks>{
           {1, {"layout.zero=0"}},
           {2, {"layout.zero=3", "layout.zero=1", "layout.zero=0"}},
           {4,
            {"layout={zero: 1 replica: 2}", "layout={zero: 3 replica: 2}",
             "layout.zero=2"}},
           {1, {"layout.zero=0"}}}) {
    std::vector<Save> saves;
    for (size_t m = 0; m < models.size(); ++m) {
      for (const std::string& layout : layouts) {
        Save save = {.to = NewFolder(absl::StrCat("of_", count, layout, "_", m,
                                                  from[m].empty())),
                     .from = from[m],
                     .sets = models[m]};
        save.sets.push_back(layout);
        from[m] = absl::StrCat(save.to, "/", CheckpointName(2));
        saves.push_back(save);
      }
    }
    const std::string notes = NewFolder("notes");
    ASSERT_TRUE(MakeDirectories(notes).ok());
    const LaunchedTests ranks =
        Launch("DISABLED_Save", count,
               {{kFolder, notes}, {kSaves, nlohmann::json(saves).dump()}});
    ASSERT_EQ(ranks.exit_code, 0) << ranks.output;
    for (size_t i = 0; i < saves.size(); ++i) {
      SCOPED_TRACE(
          absl::StrCat(count, " ranks, ", absl::StrJoin(saves[i].sets, " ")));
      const auto files =
          TensorFilesOf(absl::StrCat(saves[i].to, "/", CheckpointName(2)));
      auto& wanted = expected[i / layouts.size()];
      if (wanted.empty()) {
        wanted = files;
        EXPECT_GT(files.size(), 8u);
      }
      EXPECT_TRUE(files == wanted);
    }
  }
}

LaunchedTests TrainTwoRanks(const std::string& folder,
                            const std::string& scenario, int steps = 6) {
  return Launch("DISABLED_Train", 2,
                {{kFolder, folder},
                 {kScenario, scenario},
                 {kSteps, absl::StrCat(steps)}});
}

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  return ListDirectory(folder + "/checkpoints").value();
}

class SharedSavingRunTest : public testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    straight_ = NewFolder("straight");
    EXPECT_EQ(TrainTwoRanks(straight_, "").exit_code, 0);
  }
  static void TearDownTestSuite() { RemoveTree(straight_).IgnoreError(); }

  static inline std::string straight_;  // a run that nothing interrupts
};

TEST_P(SharedSavingRunTest, AnInterruptedSaveLeavesTheEarlierOne) {
  const std::string scenario = GetParam();
  const std::string folder = NewFolder("interrupted");
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  const LaunchedTests ranks = TrainTwoRanks(folder, scenario);
  EXPECT_NE(ranks.exit_code, 0) << ranks.output;
  if (scenario == "kill 0") {
    // What it leaves is removed when the run resumes.
    EXPECT_THAT(CheckpointsIn(folder),
                ElementsAre(StartsWith(".tmp-"), "step_00000002"));
  } else {
    EXPECT_THAT(CheckpointsIn(folder), ElementsAre("step_00000002"))
        << ranks.output;
    EXPECT_THAT(ranks.output, AllOf(HasSubstr("rank 1"),
                                    HasSubstr(".tmp-shared-step_00000004")));
  }
  if (scenario == "full disk of 1") {
    EXPECT_THAT(ranks.output,
                AllOf(HasSubstr("[1] FAILED_PRECONDITION: cannot write "),
                      HasSubstr(".safetensors: File too large")));
  }
  const LaunchedTests resumed = TrainTwoRanks(folder, "");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(CheckpointsIn(folder), Each(StartsWith("step_")));
  const std::string last = "/checkpoints/step_00000006";
  EXPECT_TRUE(TensorFilesOf(folder + last) == TensorFilesOf(straight_ + last));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, SharedSavingRunTest,
                         testing::Values("kill 1", "kill 0", "full disk of 1"));

// Only the rank that verifies the damaged file can see it.
TEST(SharedLoadingTest, AllRanksSkipACheckpointThatOneFindsDamaged) {
  const std::string folder = NewFolder("damaged");
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  ASSERT_EQ(TrainTwoRanks(folder, "").exit_code, 0);
  const std::string newest = folder + "/checkpoints/step_00000006";
  const auto files = TensorFilesOf(newest);
  const std::string file = files.begin()->first;
  std::string bytes = files.begin()->second;
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(absl::StrCat(newest, "/", file), bytes).ok());
  const LaunchedTests ranks = TrainTwoRanks(folder, "", 7);
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  EXPECT_THAT(
      ranks.output,
      AllOf(HasSubstr(absl::StrCat("skipping checkpoint ", newest, ": ", newest,
                                   "/", file)),
            HasSubstr(absl::StrCat("skipping checkpoint ", newest, ": rank ")),
            HasSubstr(" uses step 4, because it has found this one damaged or "
                      "has not seen it")));
  // It is written again.
  EXPECT_TRUE(Checkpoint::Open(newest).ok());
}

// Two runs at the same time, because they mostly wait. Ranks that fail together
// complete the save in flight: the rank that has written its files would end
// the leader, which still writes. And a slow verification ends no run.
TEST(SharedSavingTest, RanksWaitForOneThatWritesOrVerifies) {
  const std::string saving = NewFolder("all_fail");
  const std::string verifying = NewFolder("slow");
  const absl::Cleanup remove = [&] {
    RemoveTree(saving).IgnoreError();
    RemoveTree(verifying).IgnoreError();
  };
  ParallelLaunches launches(/*at_once=*/2);
  launches.Add("saving", [&] { return TrainTwoRanks(saving, "all fail"); });
  launches.Add("verifying", [&] {
    return TrainTwoRanks(verifying, "slow verification of 1", 2);
  });
  const LaunchedTests saved = launches.Result("saving");
  EXPECT_NE(saved.exit_code, 0) << saved.output;
  EXPECT_THAT(CheckpointsIn(saving),
              ElementsAre("step_00000002", "step_00000004"))
      << saved.output;
  const LaunchedTests verified = launches.Result("verifying");
  EXPECT_EQ(verified.exit_code, 0) << verified.output;
}

}  // namespace
}  // namespace tessera
