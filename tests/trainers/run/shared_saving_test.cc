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
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/monotonic_clock.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/dist/world.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch_tests.h"
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
constexpr char kFrom[] = "SHARED_SAVING_TEST_FROM";
constexpr char kSets[] = "SHARED_SAVING_TEST_SETS";  // separated by ;
constexpr char kScenario[] = "SHARED_SAVING_TEST_SCENARIO";

// The toy's state has about fifteen such files.
constexpr uint64_t kMaxFileBytes = 16 << 10;

RunConfig Config(std::vector<std::string> sets) {
  for (const absl::string_view set :
       absl::StrSplit(std::getenv(kSets), ';', absl::SkipEmpty())) {
    sets.emplace_back(set);
  }
  return ToyConfig("configs/tiny_cpu.pbtxt", sets);
}

// Saves the state of step 2, trained or from a checkpoint.
absl::Status SaveAsRank() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(Config({}), {}));
  if (const std::string from = std::getenv(kFrom); from.empty()) {
    Train(*session, 2);
  } else {
    ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                     OpenCheckpoint(from, VerifiedShareOf(world)));
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
    RETURN_IF_ERROR(saver.Start({.directory = std::getenv(kFolder),
                                 .step = 2,
                                 .begun = MonotonicNow(),
                                 .state = ExportState(session->state())},
                                /*waits=*/false));
    RETURN_IF_ERROR(saver.Collect(/*waits=*/true)->status);
  }
  return session->FinishGroup();
}

TEST(SharedSavingWorker, DISABLED_Save) {
  const KeepDeterminism keep;
  const absl::Status status = SaveAsRank();
  EXPECT_TRUE(status.ok()) << status;
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
  ASSIGN_OR_RETURN(RunPlan plan,
                   PlanRun(Config({"training.sample_tokens_at_end=0",
                                   "training.eval_batches=0", "layout.zero=2",
                                   "training.deterministic=true",
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
  options.environment = {{kFrom, ""}, {kSets, ""}, {kScenario, ""}};
  options.environment.insert(options.environment.end(), env.begin(), env.end());
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

struct Ranks {
  int count;
  const char* sets;
};

// Each layout loads what the one before has saved.
TEST(SharedSavingTest, EveryLayoutLoadsAndSavesTheSameFiles) {
  for (const char* model :
       {"precision.mode=FP32;model.tied_head=true",
        "precision.mode=BF16;model.frozen=[\"layers.0.*\"]"}) {
    std::string from;
    std::map<std::string, std::string> expected;
    for (const auto& [count, sets] :
         std::vector<Ranks>{{1, ""},
                            {2, "layout.zero=3"},
                            {4, "layout.zero=1;layout.replica=2"},
                            {2, "layout.zero=1"},
                            {4, "layout.zero=3;layout.replica=2"},
                            {2, ""},
                            {4, "layout.zero=2"},
                            {1, ""}}) {
      SCOPED_TRACE(absl::StrCat(model, " ", count, " ranks, ", sets));
      const std::string to =
          NewFolder(from.empty() ? "first" : absl::StrCat("of_", count, sets));
      const LaunchedTests ranks =
          Launch("DISABLED_Save", count,
                 {{kFolder, to},
                  {kFrom, from},
                  {kSets, absl::StrCat(model, ";", sets)}});
      ASSERT_EQ(ranks.exit_code, 0) << ranks.output;
      from = absl::StrCat(to, "/", CheckpointName(2));
      const std::map<std::string, std::string> files = TensorFilesOf(from);
      if (expected.empty()) {
        expected = files;
        EXPECT_GT(files.size(), 8u);
      }
      EXPECT_TRUE(files == expected);
    }
  }
}

LaunchedTests TrainTwoRanks(const std::string& folder,
                            const std::string& scenario, int steps = 6) {
  return Launch("DISABLED_Train", 2,
                {{kFolder, folder},
                 {kScenario, scenario},
                 {kSets, absl::StrCat("training.steps=", steps)}});
}

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  return ListDirectory(folder + "/checkpoints").value();
}

class SharedSavingRunTest : public testing::TestWithParam<const char*> {};

TEST_P(SharedSavingRunTest, AnInterruptedSaveLeavesTheEarlierOne) {
  const std::string scenario = GetParam();
  const std::string folder = NewFolder("interrupted");
  const std::string straight = NewFolder("straight");
  const absl::Cleanup remove = [&] {
    RemoveTree(folder).IgnoreError();
    RemoveTree(straight).IgnoreError();
  };
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
  EXPECT_EQ(TrainTwoRanks(straight, "").exit_code, 0);
  const std::string last = "/checkpoints/step_00000006";
  EXPECT_TRUE(TensorFilesOf(folder + last) == TensorFilesOf(straight + last));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, SharedSavingRunTest,
                         testing::Values("kill 1", "kill 0", "full disk of 1"));

// The rank that has written its files would end the leader, which still writes.
TEST(SharedSavingTest, RanksThatFailTogetherCompleteTheSaveInFlight) {
  const std::string folder = NewFolder("all_fail");
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  const LaunchedTests ranks = TrainTwoRanks(folder, "all fail");
  EXPECT_NE(ranks.exit_code, 0) << ranks.output;
  EXPECT_THAT(CheckpointsIn(folder),
              ElementsAre("step_00000002", "step_00000004"))
      << ranks.output;
}

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
            HasSubstr("has found that it is damaged")));
  // It is written again.
  EXPECT_TRUE(Checkpoint::Open(newest).ok());
}

TEST(SharedLoadingTest, ASlowVerificationEndsNoRun) {
  const std::string folder = NewFolder("slow");
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  const LaunchedTests ranks =
      TrainTwoRanks(folder, "slow verification of 1", 2);
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
}

}  // namespace
}  // namespace tessera
