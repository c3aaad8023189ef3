#include "framework/dist/process_group.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/dist/c10d_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/framework/dist/foreign_listener.h"
#include "tests/testing/launch_tests.h"

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
  std::string peer_timeout, collective_timeout, stalled;
  // Simulates that only the ranks themselves can detect a failure.
  bool ranks_ignore_sigterm = false;
  std::string world_size;  // empty: nproc
  // Overrides all other variables.
  std::vector<std::pair<std::string, std::string>> environment = {};
};

using Outcome = LaunchedTests;

Outcome Execute(const Run& run) {
  LaunchOptions options;
  options.nproc = run.nproc;
  options.environment = {{"DIST_TEST_SCENARIO", run.scenario},
                         {"OMP_NUM_THREADS", "1"}};
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) options.environment.emplace_back(name, value);
  };
  set("DIST_TEST_CUDA", run.cuda ? "1" : "");
  set("DIST_TEST_PEER_TIMEOUT", run.peer_timeout);
  set("DIST_TEST_COLLECTIVE_TIMEOUT", run.collective_timeout);
  set("DIST_TEST_STALLED", run.stalled);
  set("DIST_TEST_IGNORE_SIGTERM", run.ranks_ignore_sigterm ? "1" : "");
  set("WORLD_SIZE", run.world_size);
  options.environment.insert(options.environment.end(), run.environment.begin(),
                             run.environment.end());
  if (run.ranks_ignore_sigterm) options.grace = absl::Seconds(28);
  options.timeout = absl::Minutes(2);
  return LaunchTests("ProcessGroupWorker.*", std::move(options));
}

// For any failure, wherever the other ranks are at that moment.
constexpr absl::Duration kLongestFailure = absl::Seconds(30);

TEST(ProcessGroupTest, AWorldOfOneNeedsNoCommunication) {
  auto group = ProcessGroup::Create(WorldInfo{}, at::kCPU);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ((*group)->rank(), 0);
  EXPECT_EQ((*group)->world_size(), 1);
  EXPECT_EQ((*group)->backend(), "none");
  const at::Tensor tensor = at::arange(5);
  EXPECT_TRUE((*group)->AllReduceSum(tensor).ok());
  EXPECT_TRUE((*group)->Broadcast(tensor, 0).ok());
  EXPECT_TRUE(at::equal(tensor, at::arange(5)));
  EXPECT_TRUE((*group)->Barrier().ok());
  EXPECT_TRUE((*group)->AgreeOn("anything", 7).ok());
  EXPECT_TRUE((*group)->Finish().ok());
}

const WorldInfo kSimulatedRank = {
    .rank = 2, .world_size = 4, .simulated = true};

TEST(ProcessGroupTest, ASimulatedRankHasItsOwnShareOfEveryResult) {
  const auto group = ProcessGroup::Create(kSimulatedRank, at::kCPU);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ((*group)->rank(), 2);
  EXPECT_EQ((*group)->world_size(), 4);
  EXPECT_EQ((*group)->backend(), "simulated");
  const at::Tensor whole = at::arange(8);
  const at::Tensor shard = at::zeros({2}, at::kLong);
  EXPECT_TRUE((*group)->AllReduceSum(whole).ok());
  EXPECT_TRUE((*group)->Broadcast(whole, 0).ok());
  EXPECT_TRUE((*group)->ReduceScatterSum(whole, shard).ok());
  EXPECT_TRUE(at::equal(whole, at::arange(8)));
  EXPECT_TRUE(at::equal(shard, at::arange(4, 6)));
  shard.add_(10);
  EXPECT_TRUE((*group)->AllGather(shard, whole).ok());
  EXPECT_TRUE(at::equal(whole, shard.repeat({4})));
  // A shard may be its own part of the whole, which then stays as it is.
  whole.copy_(at::arange(8));
  EXPECT_TRUE((*group)->AllGather(whole.narrow(0, 4, 2), whole).ok());
  EXPECT_TRUE((*group)->ReduceScatterSum(whole, whole.narrow(0, 4, 2)).ok());
  EXPECT_TRUE(at::equal(whole, at::arange(8)));
  const at::Tensor received = at::zeros_like(whole);
  EXPECT_TRUE((*group)->AllToAll(whole, received).ok());
  EXPECT_TRUE(at::equal(received, whole));
  EXPECT_FALSE((*group)->AllGather(at::zeros({3}, at::kLong), whole).ok());
  EXPECT_TRUE((*group)->Barrier().ok());
  EXPECT_TRUE((*group)->AgreeOn("anything", 7).ok());
  EXPECT_TRUE((*group)->Finish().ok());
}

TEST(ProcessGroupTest, ASimulatedRankHasItsPlaceAmongTheRanksOfAPart) {
  const auto group = ProcessGroup::Create(kSimulatedRank, at::kCPU);
  ASSERT_TRUE(group.ok()) << group.status();
  const auto part = (*group)->Split("shard", {0, 2});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->rank(), 1);
  EXPECT_EQ((*part)->world_size(), 2);
  const at::Tensor shard = at::zeros({4}, at::kLong);
  EXPECT_TRUE((*part)->ReduceScatterSum(at::arange(8), shard).ok());
  EXPECT_TRUE(at::equal(shard, at::arange(4, 8)));
}

TEST(ReasonOfTest, NamesNoPlaceInTheSourcesOfALibrary) {
  const auto reason = [](const char* message) {
    return ReasonOf(absl::InternalError(message));
  };
  EXPECT_EQ(reason("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
                   "Connection closed by peer [127.0.0.1]:4711"),
            "Connection closed by peer [127.0.0.1]:4711");
  EXPECT_EQ(reason("LibTorch: NCCL error in: "
                   "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
                   "remote process exited, NCCL version 2.27.7"),
            "LibTorch: NCCL error: remote process exited, NCCL version 2.27.7");
  EXPECT_EQ(reason("connect [fe80::1]:29500 [::1] timed out"),
            "connect [fe80::1]:29500 [::1] timed out");
}

class ProcessGroupSizeTest : public testing::TestWithParam<int> {};

TEST_P(ProcessGroupSizeTest, Collectives) {
  const Outcome outcome =
      Execute({.scenario = "Collectives", .nproc = GetParam()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Gloo, ProcessGroupSizeTest, testing::Values(2, 4));

// Where each rank that ends in RankOneHangsInAStep writes what it has done.
std::string HangFolder() { return absl::StrCat(testing::TempDir(), "/hang"); }

void ExpectProgressOfThreeRanks(const Outcome& outcome) {
  for (const int rank : {0, 1, 2}) {
    const std::string path =
        absl::StrCat(HangFolder(), "/hang_rank_", rank, ".json");
    EXPECT_THAT(outcome.output, HasSubstr("progress is in " + path));
    const auto text = ReadFile(path);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto json = nlohmann::json::parse(*text);
    EXPECT_EQ(json["rank"], rank);
    EXPECT_EQ(json["step"], 4);
    // Eight operations were begun by the ranks that wait.
    EXPECT_EQ(json["begun"], rank == 1 ? 7 : 8);
    EXPECT_EQ(json["ended"], 7);
    EXPECT_THAT(json["why"].get<std::string>(), HasSubstr(" is missing in "));
  }
}

struct RunCase {
  Run run;
  int exit_code = 0;
  // Patterns that the output of a rank or the launcher must match.
  std::vector<testing::Matcher<const std::string&>> output = {};
  void (*check)(const Outcome&) = [](const Outcome&) {};

  std::string Name() const {
    return absl::StrCat(run.scenario,
                        run.world_size.empty() ? "" : "WithWrongWorldSize");
  }
  Outcome Launch() const { return Execute(run); }
};

// A suite of cases that are launched several at a time, because they mostly
// wait. A case has a Name() and a Launch().
template <typename Case>
class LaunchedCaseTest : public testing::TestWithParam<Case> {
 public:
  static void TearDownTestSuite() { launches_.reset(); }

 protected:
  // Begins with those of `cases` that are to run.
  static void Begin(const std::vector<Case>& cases) {
    launches_ = std::make_unique<ParallelLaunches>(/*at_once=*/4);
    const testing::TestSuite& suite =
        *testing::UnitTest::GetInstance()->current_test_suite();
    for (const Case& c : cases) {
      for (int i = 0; i < suite.total_test_count(); ++i) {
        const testing::TestInfo& test = *suite.GetTestInfo(i);
        if (!test.should_run() ||
            !absl::EndsWith(test.name(), "/" + c.Name())) {
          continue;
        }
        launches_->Add(c.Name(), [c] { return c.Launch(); });
      }
    }
  }
  Outcome Result() const { return launches_->Result(this->GetParam().Name()); }

 private:
  static inline std::unique_ptr<ParallelLaunches> launches_;
};

testing::Matcher<const std::string&> Says(int rank,
                                          const std::string& message) {
  return HasSubstr(absl::StrCat("[", rank, "] error: ", message));
}

constexpr char kKilled[] = "rank 1 of 3 was killed by signal 9 (Killed)";

std::vector<RunCase> Hangs() {
  return {RunCase{{.scenario = "RankOneWritesThenHangs",
                   .peer_timeout = "3s",
                   .stalled = "8s"},
                  kPeerIsGoneExitCode,
                  {HasSubstr(" in "
                             "'operation 2 of 2 (gradients): the sum of 7 "
                             "values over the ranks' of step 4 for rank 1 "),
                   HasSubstr(", which writes a checkpoint"),
                   Says(1, "rank 1 of 2: must end: no communication has ")}},
          RunCase{{.scenario = "RankOneSkipsAnOperation",
                   .peer_timeout = "3s",
                   .stalled = "8s"},
                  kPeerIsGoneExitCode,
                  {Says(0, "rank 0 of 2: must end: no communication has "),
                   Says(1, "rank 1 of 2: must end: no communication has "),
                   HasSubstr(
                       " is missing in 'operation 2 of 2 (gradients): the sum "
                       "of 7 values over the ranks' of step 5. "),
                   HasSubstr("; its host waits for all ranks to meet.")}},
          RunCase{{.scenario = "RankOneHangsInAStep",
                   .nproc = 3,
                   .peer_timeout = "3s",
                   .stalled = "8s",
                   .environment = {{"DIST_TEST_FOLDER", HangFolder()}}},
                  kPeerIsGoneExitCode,
                  {Says(0, "rank 0 of 3: must end: no communication has "),
                   Says(1, "rank 1 of 3: must end: no communication has "),
                   Says(2, "rank 2 of 3: must end: no communication has "),
                   HasSubstr(" is missing in 'operation 2 of 2 (gradients): "
                             "the sum of 7 values over the ranks' of step 4. "
                             "Ranks 0, 2 wait there. Rank 1 "),
                   HasSubstr(" has ended 'operation 1 of 2 (gradients): the "
                             "sum of 7 values over the ranks' in step 4 and "
                             "begun none since.")},
                  ExpectProgressOfThreeRanks},
          RunCase{{.scenario = "RankOneHangs", .collective_timeout = "4s"},
                  kPeerIsGoneExitCode,
                  {Says(0,
                        "rank 0 of 2: must end: no communication has made "
                        "progress for 4s: rank 1 (process "),
                   HasSubstr(" is missing in 'the sum of 1 values over the "
                             "ranks' of step 0. ")}}};
}

// Runs that end well.
std::vector<RunCase> Waits() {
  return {
      RunCase{
          {.scenario = "RankZeroWritesForLong", .collective_timeout = "4s"}},
      RunCase{
          {.scenario = "RankOneWrites", .peer_timeout = "3s", .stalled = "8s"},
          0,
          {HasSubstr(", which writes a checkpoint")}},
      // Finish() waits for it.
      RunCase{{.scenario = "SlowRankZero", .peer_timeout = "5s"}},
      // Agents may have counted different restarts.
      RunCase{{.scenario = "RankOneJoinedLater", .peer_timeout = "5s"}}};
}

std::vector<RunCase> WrongStarts() {
  return {
      // With the default timeout, which users have.
      RunCase{{.scenario = "Collectives",
               .ranks_ignore_sigterm = true,
               .world_size = "3"},
              2,
              {Says(0, "rank 0 of 3 waited for rank 2 at 127.0.0.1:"),
               Says(1, "rank 1 of 3 waited for ")}},
      // Rank 0 is not at the address that rank 1 uses.
      RunCase{{.scenario = "RankOneLooksElsewhere",
               .peer_timeout = "5s",
               .ranks_ignore_sigterm = true},
              2,
              {Says(0, "rank 0 of 2 waited for rank 1 at 127.0.0.1:"),
               Says(1,
                    "rank 1 of 2 waited for rank 0 at 127.0.0.1:1 for 5s: "
                    "Connection refused")}},
      RunCase{{.scenario = "RankOneExpectsFive", .ranks_ignore_sigterm = true},
              2,
              {AnyOf(Says(0, "rank 1 has world size 5, rank 0 has 2"),
                     Says(1, "rank 0 has world size 2, rank 1 has 5"))}},
      RunCase{{.scenario = "RankOneHasAnotherSecret",
               .peer_timeout = "5s",
               .ranks_ignore_sigterm = true},
              2,
              {Says(0, "rank 0 of 2 waited for rank 1 at 127.0.0.1:"),
               HasSubstr("1 connection was refused, from 127.0.0.1:"),
               Says(1, "rank 1 of 2 cannot join the run at 127.0.0.1:"),
               HasSubstr("rank 0 has a different TESSERA_SECRET")}},
      RunCase{{.scenario = "AddressOfAnotherMachine",
               .peer_timeout = "5s",
               .ranks_ignore_sigterm = true,
               .environment = {{"MASTER_ADDR", "203.0.113.77"}}},
              2,
              {Says(0, "cannot listen at 203.0.113.77, which is not an ")}},
      RunCase{
          {.scenario = "RankTwoClaimsOne", .nproc = 3, .peer_timeout = "5s"},
          2,
          {HasSubstr("error: two processes claim rank 1")}}};
}

std::vector<RunCase> Stops() {
  return {
      RunCase{{.scenario = "RankZeroStopped", .nproc = 3, .peer_timeout = "5s"},
              kPeerIsGoneExitCode,
              {AnyOf(Says(1, "rank 1 of 3: must end: rank 0 of 3 has "),
                     Says(2, "rank 2 of 3: must end: rank 0 of 3 has "))}},
      // No stack trace of c10d; a suspended rank ends, too.
      RunCase{{.scenario = "RankOneStopped",
               .peer_timeout = "5s",
               .ranks_ignore_sigterm = true},
              kPeerIsGoneExitCode,
              {Says(0, "rank 0 of 2: must end: rank 1 of 2 has "),
               Says(1, "rank 1 of 2: must end: lost the connection to "),
               Not(HasSubstr("frame #"))}},
      RunCase{{.scenario = "RankOneKilledWhileOthersReduce",
               .nproc = 3,
               .ranks_ignore_sigterm = true},
              128 + SIGKILL,
              {HasSubstr(kKilled), Says(0, "rank 0 of 3: "),
               Says(2, "rank 2 of 3: "),
               // No places in Gloo's sources.
               Not(HasSubstr(".cc:"))}},
      RunCase{{.scenario = "RankOneKilledWhileOthersCompute",
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
      RunCase{{.scenario = "RankOneKilledWhileOthersSave",
               .nproc = 3,
               .peer_timeout = "5s",
               .collective_timeout = "4s",
               .ranks_ignore_sigterm = true},
              128 + SIGKILL,
              {HasSubstr(kKilled), Says(0, "rank 0 of 3: "),
               Says(2, "rank 2 of 3: ")}}};
}

std::vector<RunCase> Failures() {
  return {// Rank 0 ends last, but is named as the cause.
          RunCase{{.scenario = "RankZeroFails", .nproc = 3},
                  2,
                  {HasSubstr("rank 0 of 3 exited with code 2"),
                   Says(0, "no such file")}},
          RunCase{{.scenario = "RankZeroFailsWhileOthersCompute", .nproc = 3},
                  2,
                  {HasSubstr("rank 0 of 3 exited with code 2"),
                   Says(0, "no such file")}},
          RunCase{{.scenario = "RankOneFails",
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
                        "the run was finished")}}};
}

// The longest first, so that no long one is left for the end.
std::vector<RunCase> RunCases() {
  std::vector<RunCase> cases;
  for (const std::vector<RunCase>& more :
       {Hangs(), WrongStarts(), Waits(), Stops(), Failures()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

class ProcessGroupRunTest : public LaunchedCaseTest<RunCase> {
 public:
  static void SetUpTestSuite() { Begin(RunCases()); }
};

TEST_P(ProcessGroupRunTest, EveryRankEndsAndSaysWhy) {
  const Outcome outcome = Result();
  EXPECT_EQ(outcome.exit_code, GetParam().exit_code) << outcome.output;
  if (GetParam().exit_code != 0) {
    EXPECT_LT(outcome.elapsed, kLongestFailure);
  }
  for (const auto& matcher : GetParam().output) {
    EXPECT_THAT(outcome.output, matcher);
  }
  GetParam().check(outcome);
}

INSTANTIATE_TEST_SUITE_P(Gloo, ProcessGroupRunTest,
                         testing::ValuesIn(RunCases()),
                         [](const auto& info) { return info.param.Name(); });

// Rank 1 of 2 expects rank 0 where another program listens.
Outcome MeetAtForeignPort(ForeignListener::Behavior behavior,
                          bool agent_store) {
  const ForeignListener foreign(behavior);
  return Execute({.scenario = "the ranks should not meet",
                  .nproc = 1,
                  .peer_timeout = "3s",
                  .environment = {{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_PORT", absl::StrCat(foreign.port())},
                                  {"TORCHELASTIC_USE_AGENT_STORE",
                                   agent_store ? "True" : "False"}}});
}

struct ForeignCase {
  std::string name;
  ForeignListener::Behavior behavior;
  bool agent_store;
  std::string reason;

  std::string Name() const { return name; }
  Outcome Launch() const { return MeetAtForeignPort(behavior, agent_store); }
};

constexpr char kNotTheAgent[] =
    "something accepts connections there but does not answer as torchrun's "
    "store does";

std::vector<ForeignCase> ForeignCases() {
  return {
      {"Silent", ForeignListener::kSilent, false,
       "for 3s: something accepts connections there but does not answer as "
       "rank 0 does"},
      {"Rubbish", ForeignListener::kRubbish, false, "it says 'HTTP/1.1 400"},
      {"Closes", ForeignListener::kCloses, false,
       "ends them before it answers"},
      {"SilentAgent", ForeignListener::kSilent, true, kNotTheAgent},
      {"RubbishAgent", ForeignListener::kRubbish, true, kNotTheAgent},
      {"ClosesAgent", ForeignListener::kCloses, true, kNotTheAgent}};
}

class ForeignListenerTest : public LaunchedCaseTest<ForeignCase> {
 public:
  static void SetUpTestSuite() { Begin(ForeignCases()); }
};

TEST_P(ForeignListenerTest, EndsTheWaitForRankZeroWithAnErrorThatNamesIt) {
  const Outcome outcome = Result();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_LT(outcome.elapsed, absl::Seconds(10));
  EXPECT_THAT(outcome.output,
              HasSubstr("error: rank 1 of 2 waited for rank 0 at 127.0.0.1:"));
  EXPECT_THAT(outcome.output, HasSubstr(GetParam().reason));
  EXPECT_THAT(outcome.output, Not(HasSubstr("frame #")));
}

INSTANTIATE_TEST_SUITE_P(All, ForeignListenerTest,
                         testing::ValuesIn(ForeignCases()),
                         [](const auto& info) { return info.param.Name(); });

// Rank 2 of `launch` acts as torchrun's agent.
TEST(ProcessGroupTest, UsesTheStoreOfAnAgent) {
  const Outcome outcome = Execute({.scenario = "AgentServesTheStore",
                                   .nproc = 3,
                                   .world_size = "2",
                                   .environment = {{"LOCAL_WORLD_SIZE", "2"}}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("[0] warning: TESSERA_SECRET does not protect the "
                        "store at 127.0.0.1:"));
}

TEST(ProcessGroupTest, EndsWhenAnAgentStopsAnswering) {
  const Outcome outcome = Execute(
      {.scenario = "AgentStopsAnswering", .nproc = 3, .peer_timeout = "3s"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_LT(outcome.elapsed, absl::Seconds(15));
  EXPECT_THAT(outcome.output,
              HasSubstr("the store let this rank in, and then stopped"));
}

TEST(MasterAddressTest, AcceptsAnyAddressOrNameOfThisMachine) {
  for (const std::string address : {"127.0.0.2", "localhost"}) {
    const Outcome outcome = Execute(
        {.scenario = "Collectives", .environment = {{"MASTER_ADDR", address}}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, Not(HasSubstr("warning")));
  }
}

// An address of this machine that others can reach; empty if it has none.
std::string ExternalAddress() {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return "";
  const absl::Cleanup free = [interfaces] { ::freeifaddrs(interfaces); };
  for (const ifaddrs* i = interfaces; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
        (i->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN];
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    return ::inet_ntop(AF_INET, &ipv4->sin_addr, text, sizeof(text));
  }
  return "";
}

TEST(MasterAddressTest, AnExternalAddressWithoutASecretWarns) {
  const std::string address = ExternalAddress();
  if (address.empty()) GTEST_SKIP() << "only a loopback interface";
  for (const std::string secret : {"", "sixteen letters!"}) {
    const Outcome outcome =
        Execute({.scenario = "Collectives",
                 .environment = {{"MASTER_ADDR", address},
                                 {"TESSERA_SECRET", secret}}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto warns = HasSubstr(
        absl::StrCat("[0] warning: any machine that reaches ", address, ":"));
    if (secret.empty()) {
      EXPECT_THAT(outcome.output, warns);
    } else {
      EXPECT_THAT(outcome.output, Not(HasSubstr("warning")));
    }
    EXPECT_THAT(outcome.output, Not(HasSubstr("[1] warning")));
  }
}

class GpuProcessGroupTest : public testing::Test {
 protected:
  void SetUp() override {
    if (at::getNumGPUs() < 2) GTEST_SKIP() << "needs two CUDA GPUs";
  }
};

TEST_F(GpuProcessGroupTest, Nccl) {
  for (const char* scenario : {"Collectives", "SlowRankZero", "CapturedSum",
                               "GathersFromWindowsOfManySizes"}) {
    const Outcome outcome = Execute({.scenario = scenario, .cuda = true});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

TEST_F(GpuProcessGroupTest, NcclOfFourRanks) {
  if (at::getNumGPUs() < 4) GTEST_SKIP() << "needs four CUDA GPUs";
  for (const char* scenario :
       {"Collectives", "GathersFromWindowsOfManySizes"}) {
    const Outcome outcome =
        Execute({.scenario = scenario, .nproc = 4, .cuda = true});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
}

TEST_F(GpuProcessGroupTest, WaitsForARankThatWritesACheckpoint) {
  const Outcome outcome = Execute({.scenario = "RankZeroWritesForLong",
                                   .cuda = true,
                                   .collective_timeout = "15s"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST_F(GpuProcessGroupTest, EveryRankEndsWhenOneIsKilled) {
  // Both ways of detection: while the host computes, and while it waits for a
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
