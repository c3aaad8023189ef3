// Two ranks that train, of which one hangs or is slow.

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/dist/world.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch_tests.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFolder[] = "HANGING_RANK_TEST_FOLDER";
constexpr char kScenario[] = "HANGING_RANK_TEST_SCENARIO";
// On GPUs, the execution.mode; empty: on a CPU.
constexpr char kMode[] = "HANGING_RANK_TEST_MODE";
// Whether each communication of a step counts: "true" or "false".
constexpr char kEach[] = "HANGING_RANK_TEST_EACH";

// After the graph's first launches.
constexpr int64_t kLastGoodStep = 5;

// Longer than the limit.
constexpr absl::Duration kSlow = absl::Seconds(12);

// Makes steps slow enough for the heartbeat to see two of them begin. Can hang
// after kLastGoodStep, or be slow as a console is whose reader is.
class SlowObserver : public RunObserver {
 public:
  bool hangs = false;
  bool writes_slowly = false;

  absl::Status OnStepEnd(int64_t step) override {
    absl::SleepFor(absl::Milliseconds(300));
    if (hangs && step == kLastGoodStep) absl::SleepFor(absl::Minutes(5));
    if (writes_slowly && step == kLastGoodStep) absl::SleepFor(kSlow);
    return absl::OkStatus();
  }

  absl::Status OnValidationEnd(const EvalRecord& /*record*/) override {
    if (writes_slowly) absl::SleepFor(kSlow);
    return absl::OkStatus();
  }
};

RunConfig Config(const std::string& mode) {
  std::vector<std::string> sets = {"training.steps=8",
                                   "observe.log_every_steps=1",
                                   "execution.tune_products=false"};
  if (mode.empty()) {
    sets.push_back("checkpoint.every_steps=4");
    sets.push_back("layout.zero=1");
    sets.push_back("training.eval_every_steps=6");
    return ToyConfig("configs/tiny_cpu.pbtxt", sets);
  }
  sets.push_back(absl::StrCat("execution.mode=", mode));
  sets.push_back(
      absl::StrCat("observe.watch_communications=", std::getenv(kEach)));
  return GpuSizedConfig(sets);
}

absl::Status TrainAsRank() {
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  const std::string scenario = std::getenv(kScenario);
  ASSIGN_OR_RETURN(RunFolder run, OpenRunFolder(std::getenv(kFolder), "never",
                                                /*writes=*/world.rank == 0));
  SessionOptions options;
  options.timeouts.peer = absl::Seconds(3);
  options.timeouts.stalled = absl::Seconds(8);
  options.timeouts.count_whole_steps =
      std::getenv(kEach) == absl::string_view("false");
  ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                   Session::Create(Config(std::getenv(kMode)), options));
  SlowObserver slow;
  slow.hangs = scenario == "hang" && world.rank == 1;
  slow.writes_slowly = scenario == "slow_output" && world.rank == 0;
  TrainerOptions trainer_options = {.observers = {&slow}};
  if (scenario == "slow_checkpoint") {
    trainer_options.write_point = [](absl::string_view operation) {
      if (absl::StartsWith(operation, "create ") &&
          absl::StrContains(operation, "manifest.json")) {
        absl::SleepFor(kSlow);
      }
    };
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(session), std::move(run),
                                   std::move(trainer_options)));
  return trainer->Run();
}

TEST(HangingRankWorker, DISABLED_Train) {
  const KeepDeterminism keep;
  const absl::Status status = TrainAsRank();
  EXPECT_TRUE(status.ok()) << status;
}

LaunchedTests TrainRanks(int ranks, const std::string& folder,
                         const std::string& scenario, const std::string& mode,
                         bool each = true) {
  LaunchOptions options;
  options.nproc = ranks;
  options.environment = {{kFolder, folder},
                         {kScenario, scenario},
                         {kMode, mode},
                         {kEach, each ? "true" : "false"}};
  options.timeout = absl::Minutes(2);
  return LaunchTests("HangingRankWorker.*", std::move(options));
}

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/hanging_", name, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder;
}

// Both ranks of a run in `folder` name rank 1, the operation and the step.
void ExpectThatRankOneIsNamed(const LaunchedTests& ranks,
                              const std::string& folder) {
  EXPECT_EQ(ranks.exit_code, kPeerIsGoneExitCode) << ranks.output;
  EXPECT_LT(ranks.elapsed, absl::Seconds(60));
  // Rank 0 waits in the first sum of the next step or, if the ranks agree on
  // signals in between, which they do about once a second, in that exchange.
  const std::string place = absl::StrCat(" is missing in '.*' of step [",
                                         kLastGoodStep, kLastGoodStep + 1, "]");
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.output, HasSubstr(absl::StrCat(
                                  "[", rank, "] error: rank ", rank,
                                  " of 2: must end: no communication has ")));
    const auto text =
        ReadFile(absl::StrCat(folder, "/hang_rank_", rank, ".json"));
    ASSERT_TRUE(text.ok()) << text.status();
    const nlohmann::json json = nlohmann::json::parse(*text);
    EXPECT_GE(json["step"], kLastGoodStep);
    EXPECT_LE(json["step"], kLastGoodStep + 1 - rank);
    EXPECT_THAT(json["why"].get<std::string>(),
                AllOf(HasSubstr(": rank 1 ("), ContainsRegex(place)));
  }
}

// The runs mostly wait, so they run at the same time.
class HangingRankTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    hanging_ = NewFolder("named");
    whole_steps_ = NewFolder("whole_steps");
    slow_ = NewFolder("slow");
    slow_output_ = NewFolder("slow_output");
    launches_ = std::make_unique<ParallelLaunches>(/*at_once=*/2);
    launches_->Add(hanging_,
                   [] { return TrainRanks(2, hanging_, "hang", ""); });
    launches_->Add(whole_steps_, [] {
      return TrainRanks(2, whole_steps_, "hang", "", /*each=*/false);
    });
    launches_->Add(slow_,
                   [] { return TrainRanks(4, slow_, "slow_checkpoint", ""); });
    launches_->Add(slow_output_, [] {
      return TrainRanks(2, slow_output_, "slow_output", "");
    });
  }
  static void TearDownTestSuite() {
    launches_.reset();
    for (const std::string& folder :
         {hanging_, whole_steps_, slow_, slow_output_}) {
      RemoveTree(folder).IgnoreError();
    }
  }

  static inline std::string hanging_, whole_steps_, slow_, slow_output_;
  static inline std::unique_ptr<ParallelLaunches> launches_;
};

TEST_F(HangingRankTest, IsNamedByEveryRank) {
  ExpectThatRankOneIsNamed(launches_->Result(hanging_), hanging_);
}

TEST_F(HangingRankTest, IsNamedIfTheCommunicationsOfAStepCountAsOne) {
  const LaunchedTests& ranks = launches_->Result(whole_steps_);
  ExpectThatRankOneIsNamed(ranks, whole_steps_);
  EXPECT_THAT(ranks.output, HasSubstr("set observe.watch_communications=true"));
}

// At the second save rank 0 still writes the first. The others, of which two
// write nothing, must not wait for it in the gathering of the state: NCCL would
// end that after GroupTimeouts::collective.
TEST_F(HangingRankTest, RanksWaitForASlowCheckpointOutsideOfCommunications) {
  const LaunchedTests ranks = launches_->Result(slow_);
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  EXPECT_THAT(ranks.output, Not(HasSubstr("which writes a checkpoint")));
}

TEST_F(HangingRankTest, RanksWaitForAConsoleThatIsSlowToRead) {
  const LaunchedTests ranks = launches_->Result(slow_output_);
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  EXPECT_THAT(ranks.output, AllOf(HasSubstr("which shows its progress"),
                                  HasSubstr("which writes the log")));
}

TEST(GpuHangingRankTest, IsNamedByEveryRankInEagerStepsAndGraphs) {
  if (at::getNumGPUs() < 2) GTEST_SKIP() << "needs two CUDA GPUs";
  for (const char* mode : {"EAGER", "GRAPH"}) {
    for (const bool each : {true, false}) {
      const std::string name = absl::StrCat("named", mode, each);
      SCOPED_TRACE(name);
      const std::string folder = NewFolder(name);
      const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
      ExpectThatRankOneIsNamed(TrainRanks(2, folder, "hang", mode, each),
                               folder);
    }
  }
}

}  // namespace
}  // namespace tessera
