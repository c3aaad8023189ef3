#include "framework/dist/process_group.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "framework/dist/launcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A run of process_group_worker.cc, one real process per rank.
struct Run {
  std::string scenario;
  int nproc = 2;
  bool cuda = false;
  // Empty: the default.
  std::string peer_timeout;
  // As if nothing but the ranks themselves could notice a failure.
  bool ranks_ignore_sigterm = false;
  std::string world_size;  // empty: nproc
};

struct Outcome {
  int exit_code = -1;
  std::string output;  // both streams of all ranks, and the launcher's
  absl::Duration elapsed;
};

Outcome Execute(const Run& run) {
  LaunchOptions options;
  options.nproc = run.nproc;
  options.command = {"/proc/self/exe", "--gtest_filter=ProcessGroupWorker.*",
                     "--gtest_also_run_disabled_tests"};
  options.environment = {{"DIST_TEST_SCENARIO", run.scenario},
                         {"OMP_NUM_THREADS", "1"}};
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) options.environment.emplace_back(name, value);
  };
  set("DIST_TEST_CUDA", run.cuda ? "1" : "");
  set("DIST_TEST_PEER_TIMEOUT", run.peer_timeout);
  set("DIST_TEST_IGNORE_SIGTERM", run.ranks_ignore_sigterm ? "1" : "");
  set("WORLD_SIZE", run.world_size);
  if (run.ranks_ignore_sigterm) options.grace = absl::Seconds(28);
  options.timeout = absl::Minutes(2);
  char* output = nullptr;
  size_t size = 0;
  options.out = options.err = open_memstream(&output, &size);
  const absl::Time start = absl::Now();
  const absl::StatusOr<int> exit_code = Launch(options);
  Outcome outcome;
  outcome.elapsed = absl::Now() - start;
  std::fclose(options.out);
  outcome.output.assign(output, size);
  std::free(output);
  EXPECT_TRUE(exit_code.ok()) << exit_code.status();
  outcome.exit_code = exit_code.value_or(-1);
  return outcome;
}

// Whatever fails, and wherever the other ranks are at that moment.
constexpr absl::Duration kLongestFailure = absl::Seconds(30);

TEST(ProcessGroupTest, AWorldOfOneNeedsNoCommunication) {
  auto group = ProcessGroup::Create(WorldInfo{}, at::kCPU);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ((*group)->rank(), 0);
  EXPECT_EQ((*group)->world_size(), 1);
  EXPECT_EQ((*group)->backend(), "none");
  const at::Tensor tensor = at::arange(5);
  EXPECT_TRUE((*group)->AllReduceSum(tensor).ok());
  EXPECT_TRUE((*group)->AllReduceInBuckets(tensor, 8).ok());
  EXPECT_TRUE((*group)->Broadcast(tensor, 0).ok());
  EXPECT_TRUE(at::equal(tensor, at::arange(5)));
  EXPECT_TRUE((*group)->Barrier().ok());
  EXPECT_TRUE((*group)->AgreeOn("anything", 7).ok());
  EXPECT_TRUE((*group)->Finish().ok());
}

class ProcessGroupSizeTest : public testing::TestWithParam<int> {};

TEST_P(ProcessGroupSizeTest, Collectives) {
  const Outcome outcome =
      Execute({.scenario = "Collectives", .nproc = GetParam()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Gloo, ProcessGroupSizeTest, testing::Values(2, 4));

TEST(ProcessGroupTest, FinishWaitsForASlowRank) {
  const Outcome outcome =
      Execute({.scenario = "SlowRankZero", .peer_timeout = "5s"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

struct FailureCase {
  Run run;
  int exit_code;
  // Some rank's (or the launcher's) output matches each.
  std::vector<testing::Matcher<const std::string&>> output;
};

class ProcessGroupFailureTest : public testing::TestWithParam<FailureCase> {};

TEST_P(ProcessGroupFailureTest, EveryRankEndsAndSaysWhy) {
  const Outcome outcome = Execute(GetParam().run);
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code);
  EXPECT_LT(outcome.elapsed, kLongestFailure);
  for (const auto& matcher : GetParam().output) {
    EXPECT_THAT(outcome.output, matcher);
  }
}

testing::Matcher<const std::string&> Says(int rank,
                                          const std::string& message) {
  return HasSubstr(absl::StrCat("[", rank, "] error: ", message));
}

constexpr char kKilled[] = "rank 1 of 3 was killed by signal 9 (Killed)";

INSTANTIATE_TEST_SUITE_P(
    Gloo, ProcessGroupFailureTest,
    testing::Values(
        FailureCase{{.scenario = "RankOneKilledWhileOthersReduce",
                     .nproc = 3,
                     .ranks_ignore_sigterm = true},
                    128 + SIGKILL,
                    {HasSubstr(kKilled), Says(0, "rank 0 of 3: "),
                     Says(2, "rank 2 of 3: ")}},
        FailureCase{{.scenario = "RankOneKilledWhileOthersCompute",
                     .nproc = 3,
                     .peer_timeout = "5s",
                     .ranks_ignore_sigterm = true},
                    128 + SIGKILL,
                    {HasSubstr(kKilled),
                     Says(0,
                          "rank 0 of 3: must end: rank 1 of 3 has given no "
                          "sign of life for 5s"),
                     Says(2,
                          "rank 2 of 3: must end: rank 1 of 3 has given no "
                          "sign of life for 5s")}},
        FailureCase{
            {.scenario = "RankZeroStopped", .nproc = 3, .peer_timeout = "5s"},
            1,
            {AnyOf(Says(1, "rank 1 of 3: must end: rank 0 of 3 has "),
                   Says(2, "rank 2 of 3: must end: rank 0 of 3 has "))}},
        // No stack of c10d's, and one that was stopped ends as well.
        FailureCase{{.scenario = "RankOneStopped",
                     .peer_timeout = "5s",
                     .ranks_ignore_sigterm = true},
                    1,
                    {Says(0, "rank 0 of 2: must end: rank 1 of 2 has "),
                     Says(1, "rank 1 of 2: must end: lost the connection to "),
                     Not(HasSubstr("frame #"))}},
        // Rank 0 takes longest to end, and still is the one that is named.
        FailureCase{{.scenario = "RankZeroFails", .nproc = 3},
                    2,
                    {HasSubstr("rank 0 of 3 exited with code 2"),
                     Says(0, "no such file")}},
        FailureCase{{.scenario = "RankZeroFailsWhileOthersCompute", .nproc = 3},
                    2,
                    {HasSubstr("rank 0 of 3 exited with code 2"),
                     Says(0, "no such file")}},
        FailureCase{{.scenario = "RankOneFails",
                     .nproc = 3,
                     .ranks_ignore_sigterm = true},
                    2,
                    {HasSubstr("rank 1 of 3 exited with code 2"),
                     Says(1, "no such file"),
                     Says(0,
                          "rank 0 of 3: must end: rank 1 of 3 ended before "
                          "the run was finished"),
                     Says(2,
                          "rank 2 of 3: must end: rank 1 of 3 ended before "
                          "the run was finished")}},
        // With the default time-out, which is what users get.
        FailureCase{{.scenario = "Collectives",
                     .ranks_ignore_sigterm = true,
                     .world_size = "3"},
                    1,
                    {Says(0, "rank 0 of 3 awaited rank 2 at 127.0.0.1:"),
                     Says(1, "rank 1 of 3 awaited ")}},
        // Rank 0 is not where rank 1 looks.
        FailureCase{
            {.scenario = "RankOneLooksElsewhere", .ranks_ignore_sigterm = true},
            1,
            {Says(0, "rank 0 of 2 awaited rank 1 at 127.0.0.1:"),
             Says(1,
                  "rank 1 of 2 awaited rank 0 at 127.0.0.1:1 for 20s: "
                  "Connection refused")}},
        FailureCase{
            {.scenario = "RankOneExpectsFive", .ranks_ignore_sigterm = true},
            2,
            {AnyOf(Says(0, "rank 1 has world size 5, rank 0 has 2"),
                   Says(1, "rank 0 has world size 2, rank 1 has 5"))}},
        FailureCase{
            {.scenario = "RankTwoClaimsOne", .nproc = 3, .peer_timeout = "5s"},
            2,
            {HasSubstr("error: two processes claim rank 1")}}),
    [](const auto& info) {
      const Run& run = info.param.run;
      return absl::StrCat(run.scenario,
                          run.world_size.empty() ? "" : "WithWrongWorldSize");
    });

class GpuProcessGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    if (at::getNumGPUs() < 2) GTEST_SKIP() << "needs two CUDA GPUs";
  }
};

TEST_F(GpuProcessGroupTest, Nccl) {
  for (const char* scenario : {"Collectives", "SlowRankZero", "CapturedSum"}) {
    const Outcome outcome = Execute({.scenario = scenario, .cuda = true});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

TEST_F(GpuProcessGroupTest, EveryRankEndsWhenOneIsKilled) {
  // Both ways of noticing: while the host computes, and while it waits for a
  // kernel that waits for the other GPU.
  for (const char* scenario :
       {"RankOneKilledWhileOthersReduce", "RankOneKilledWhileOthersCompute"}) {
    const Outcome outcome = Execute(
        {.scenario = scenario, .cuda = true, .ranks_ignore_sigterm = true});
    EXPECT_EQ(outcome.exit_code, 128 + SIGKILL) << outcome.output;
    EXPECT_LT(outcome.elapsed, kLongestFailure);
    EXPECT_THAT(outcome.output, Says(0, "rank 0 of 2: "));
  }
}

}  // namespace
}  // namespace tessera
