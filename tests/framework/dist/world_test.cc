#include "framework/dist/world.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/dist/launch_arguments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<WorldInfo> Parse(const Environment& environment) {
  return WorldFromEnvironment([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

Environment Torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "gpu01"},
          {"MASTER_PORT", "29500"}};
}

Environment Slurm() {
  return {{"SLURM_PROCID", "3"},       {"SLURM_NTASKS", "4"},
          {"SLURM_LOCALID", "1"},      {"SLURM_NNODES", "2"},
          {"SLURM_JOB_ID", "1234567"}, {"SLURM_STEP_NODELIST", "gpu[03-04]"}};
}

Environment With(Environment environment, const std::string& name,
                 const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment Without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(WorldTest, NothingSetIsASingleProcess) {
  const auto world = Parse({{"MASTER_ADDR", "gpu01"}, {"RANK", ""}});
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->rank, 0);
  EXPECT_EQ(world->world_size, 1);
  EXPECT_EQ(world->local_world_size, 1);
  EXPECT_EQ(world->source, "single");
}

absl::StatusOr<WorldInfo> Simulate(int ranks, int rank,
                                   const Environment& environment = {}) {
  return SimulatedWorld(ranks, rank, [&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(WorldTest, ASimulatedRankHasTheFirstDeviceToItself) {
  // Slurm sets its variables also for a shell of one task.
  for (const Environment& environment :
       {Environment{},
        Environment{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}}) {
    const auto world = Simulate(512, 7, environment);
    ASSERT_TRUE(world.ok()) << world.status();
    EXPECT_EQ(world->rank, 7);
    EXPECT_EQ(world->world_size, 512);
    EXPECT_EQ(world->local_rank, 0);
    EXPECT_EQ(world->local_world_size, 1);
    EXPECT_TRUE(world->simulated);
    EXPECT_TRUE(world->prints());
    EXPECT_THAT(DescribeSimulation(*world), HasSubstr("rank 7 of 512; sums"));
  }
  EXPECT_EQ(DescribeSimulation(*Parse(Torchrun())), "");
  EXPECT_FALSE(Parse(Torchrun())->prints());
}

TEST(WorldTest, RefusesToSimulateWhatCannotBe) {
  struct Refused {
    int ranks, rank;
    Environment environment;
    const char* message;
  };
  for (const auto& [ranks, rank, environment, message] : std::vector<Refused>{
           {512, 512, {}, "--rank=512 must be in [0, 511]"},
           {512, -1, {}, "--rank=-1 must be in [0, 511]"},
           {1, 0, {}, "--simulate_world=1 must be in [2, "},
           {-2, 0, {}, "--simulate_world=-2 must be in [2, "},
           {8, 0, Torchrun(), "but RANK=5 is set"},
           {8, 0, {{"WORLD_SIZE", "1"}}, "but WORLD_SIZE=1 is set"},
           {8, 0, Slurm(), "but SLURM_NTASKS=4"}}) {
    const auto world = Simulate(ranks, rank, environment);
    EXPECT_EQ(world.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(world.status().message()), HasSubstr(message));
  }
}

TEST(WorldTest, ReadsTorchrun) {
  auto environment = Torchrun();
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  environment["TORCHELASTIC_RESTART_COUNT"] = "2";
  // torchrun inside a Slurm allocation: torchrun's variables take precedence.
  environment["SLURM_PROCID"] = "0";
  environment["SLURM_NTASKS"] = "2";
  const auto world = Parse(environment);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->rank, 5);
  EXPECT_EQ(world->world_size, 8);
  EXPECT_EQ(world->local_rank, 1);
  EXPECT_EQ(world->local_world_size, 4);
  EXPECT_EQ(world->master_addr, "gpu01");
  EXPECT_EQ(world->master_port, 29500);
  EXPECT_TRUE(world->agent_store);
  EXPECT_EQ(world->restart_count, 2);
  EXPECT_EQ(world->source, "torchrun");
}

TEST(WorldTest, ReadsLaunch) {
  const auto world = Parse(With(Torchrun(), "TESSERA_LAUNCH", "1"));
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_FALSE(world->agent_store);
  EXPECT_EQ(world->source, "launch");
}

TEST(WorldTest, AWorldOfOneNeedsOnlyItsRank) {
  const Environment environment = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  const auto world = Parse(environment);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->restart_count, 0);
  EXPECT_EQ(Parse(With(environment, "TORCHELASTIC_RESTART_COUNT", "2"))
                ->restart_count,
            2);
  EXPECT_EQ(world->local_rank, 0);
  EXPECT_EQ(world->local_world_size, 1);
}

TEST(WorldTest, ReadsTheSecret) {
  const std::string secret = "0123456789abcdef";
  for (const Environment& environment : {Torchrun(), Slurm()}) {
    EXPECT_EQ(Parse(environment)->secret, "");
    EXPECT_EQ(Parse(With(environment, "TESSERA_SECRET", secret))->secret,
              secret);
    const absl::Status refused =
        Parse(With(environment, "TESSERA_SECRET", secret.substr(1))).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("TESSERA_SECRET has 15 characters; it must have at "
                          "least 16"));
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("abcdef")));
  }
  EXPECT_TRUE(Parse({{"TESSERA_SECRET", "short"}}).ok());
}

TEST(WorldTest, ReadsSlurm) {
  const auto world = Parse(Slurm());
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->rank, 3);
  EXPECT_EQ(world->world_size, 4);
  EXPECT_EQ(world->local_rank, 1);
  EXPECT_EQ(world->local_world_size, 2);  // 4 tasks on 2 nodes
  EXPECT_EQ(world->master_addr, "gpu03");
  EXPECT_EQ(world->master_port, 24567);  // 20000 + job id % 10000
  EXPECT_EQ(world->source, "slurm");
  EXPECT_EQ(world->restart_count, 0);
  EXPECT_EQ(Parse(With(Slurm(), "SLURM_RESTART_COUNT", "2"))->restart_count, 2);
}

TEST(WorldTest, ThePortOfAJobDependsOnItsStep) {
  EXPECT_EQ(Parse(With(Slurm(), "SLURM_STEP_ID", "0"))->master_port, 24567);
  EXPECT_EQ(Parse(With(Slurm(), "SLURM_STEP_ID", "6"))->master_port, 20549);
  // A step that Slurm reserves, and a job of a federation.
  const Environment large = With(With(Slurm(), "SLURM_STEP_ID", "4294967290"),
                                 "SLURM_JOB_ID", "2214592513");
  EXPECT_EQ(Parse(large)->master_port, 20643);
  EXPECT_EQ(
      Parse(With(With(Slurm(), "SLURM_JOB_ID", "none"), "MASTER_PORT", "1234"))
          ->master_port,
      1234);
}

TEST(WorldTest, RankZeroIsOnTheFirstNodeOfTheJobStep) {
  const Environment both = With(Slurm(), "SLURM_JOB_NODELIST", "gpu[01-04]");
  EXPECT_EQ(Parse(both)->master_addr, "gpu03");
  EXPECT_EQ(Parse(Without(both, "SLURM_STEP_NODELIST"))->master_addr, "gpu01");
}

TEST(WorldTest, ASlurmTaskThatSeesOneGpuUsesIt) {
  const WorldInfo slurm = Parse(Slurm()).value();
  EXPECT_EQ(CudaDeviceIndex(slurm, 1), 0);
  EXPECT_EQ(CudaDeviceIndex(slurm, 2), 1);
  // Rejected, because there is no GPU for the second rank.
  WorldInfo launch = slurm;
  launch.source = "launch";
  EXPECT_EQ(CudaDeviceIndex(launch, 1), 1);
}

TEST(WorldTest, SlurmPrefersWhatTheJobScriptExports) {
  auto environment = Slurm();
  environment["MASTER_ADDR"] = "10.0.0.7";
  environment["MASTER_PORT"] = "1234";
  environment["WORLD_SIZE"] = "4";
  environment["SLURM_NTASKS_PER_NODE"] = "3";
  const auto world = Parse(environment);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->master_addr, "10.0.0.7");
  EXPECT_EQ(world->master_port, 1234);
  EXPECT_EQ(world->local_world_size, 3);
}

// The first nodes have one more task.
TEST(WorldTest, SlurmSpreadsAnOddTaskToo) {
  auto environment = Slurm();
  environment["SLURM_NTASKS"] = "5";
  environment["SLURM_PROCID"] = "2";
  environment["SLURM_LOCALID"] = "2";
  const auto world = Parse(environment);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->local_world_size, 3);
}

TEST(WorldTest, SlurmSaysHowManyTasksANodeHas) {
  auto environment = Slurm();
  environment["SLURM_NTASKS"] = "5";
  environment["SLURM_LOCALID"] = "3";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "4,1";
  environment["SLURM_NODEID"] = "0";
  const auto uneven = Parse(environment);
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_EQ(uneven->local_world_size, 4);
  // The job has four tasks a node, the step two.
  environment = Slurm();
  environment["SLURM_NTASKS_PER_NODE"] = "4";
  environment["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)";
  environment["SLURM_NODEID"] = "1";
  EXPECT_EQ(Parse(environment)->local_world_size, 2);
  environment["SLURM_STEP_TASKS_PER_NODE"] = "1(x1),3";
  EXPECT_EQ(Parse(environment)->local_world_size, 3);
  EXPECT_EQ(Parse(Without(environment, "SLURM_NODEID"))->local_world_size, 4);
}

struct BadCase {
  std::string name;
  Environment environment;
  std::string message;
};

class BadWorldTest : public testing::TestWithParam<BadCase> {};

TEST_P(BadWorldTest, NamesTheVariable) {
  const auto world = Parse(GetParam().environment);
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(world.status().message()),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadWorldTest,
    testing::Values(
        BadCase{"RankTooLarge", With(Torchrun(), "RANK", "8"),
                "RANK=8 must be less than WORLD_SIZE=8"},
        BadCase{"RankNoNumber", With(Torchrun(), "RANK", "one"),
                "RANK=one must be an integer in [0, "},
        BadCase{"RankNegative", With(Torchrun(), "RANK", "-1"), "RANK=-1"},
        BadCase{"NoRank", Without(Torchrun(), "RANK"), "RANK is not set"},
        BadCase{"NoWorldSize", Without(Torchrun(), "WORLD_SIZE"),
                "WORLD_SIZE is not set"},
        BadCase{"LocalRankTooLarge", With(Torchrun(), "LOCAL_RANK", "4"),
                "LOCAL_RANK=4 must be less than LOCAL_WORLD_SIZE=4"},
        BadCase{"LocalWorldTooLarge", With(Torchrun(), "LOCAL_WORLD_SIZE", "9"),
                "LOCAL_WORLD_SIZE=9 must be at most WORLD_SIZE=8"},
        BadCase{"NoLocalRank", Without(Torchrun(), "LOCAL_RANK"),
                "WORLD_SIZE=8, but LOCAL_RANK is not set; start every rank "},
        BadCase{"OnlyWorldSize",
                {{"WORLD_SIZE", "2"}},
                "WORLD_SIZE=2, but RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, "
                "MASTER_ADDR, MASTER_PORT are not set; "},
        BadCase{"NoAddress", Without(Torchrun(), "MASTER_ADDR"),
                "MASTER_ADDR is not set"},
        BadCase{"NoPort", Without(Torchrun(), "MASTER_PORT"),
                "MASTER_PORT is not set"},
        BadCase{"PortTooLarge", With(Torchrun(), "MASTER_PORT", "70000"),
                "MASTER_PORT=70000 must be an integer in [1, 65535]"},
        BadCase{"SlurmRankTooLarge", With(Slurm(), "SLURM_PROCID", "4"),
                "SLURM_PROCID=4 must be less than SLURM_NTASKS=4"},
        BadCase{"SlurmAgainstWorldSize", With(Slurm(), "WORLD_SIZE", "3"),
                "WORLD_SIZE=3 contradicts SLURM_NTASKS=4"},
        BadCase{"SlurmNoTasksOfNode",
                With(With(Slurm(), "SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
                     "SLURM_NODEID", "2"),
                "SLURM_STEP_TASKS_PER_NODE=2(x2) has no number of tasks for "
                "SLURM_NODEID=2"},
        BadCase{"SlurmTasksOfNodeNoNumber",
                With(With(Slurm(), "SLURM_STEP_TASKS_PER_NODE", "two"),
                     "SLURM_NODEID", "0"),
                "SLURM_STEP_TASKS_PER_NODE=two has no number"},
        BadCase{"SlurmLocalRankTooLarge",
                With(With(Slurm(), "SLURM_STEP_TASKS_PER_NODE", "1,3"),
                     "SLURM_NODEID", "0"),
                "SLURM_LOCALID=1 must be less than "
                "SLURM_STEP_TASKS_PER_NODE=1"},
        BadCase{"SlurmJobNoNumber", With(Slurm(), "SLURM_JOB_ID", "none"),
                "SLURM_JOB_ID=none must be an integer in [0, 4294967295]"},
        BadCase{"SlurmNoHost", Without(Slurm(), "SLURM_STEP_NODELIST"),
                "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set"}),
    [](const auto& info) { return info.param.name; });

TEST(WorldTest, FirstSlurmHost) {
  EXPECT_EQ(FirstSlurmHost("gpu07"), "gpu07");
  EXPECT_EQ(FirstSlurmHost("gpu07,gpu09"), "gpu07");
  EXPECT_EQ(FirstSlurmHost("gpu[07-09,12],login1"), "gpu07");
  EXPECT_EQ(FirstSlurmHost("gpu[12,14-16]"), "gpu12");
  EXPECT_EQ(FirstSlurmHost("rack[1-2]-node[03,05]"), "rack1-node03");
  EXPECT_EQ(FirstSlurmHost("a-1-[5-6].example.org"), "a-1-5.example.org");
}

TEST(WorldTest, Loopback) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_FALSE(IsLoopback("gpu01"));
  EXPECT_FALSE(IsLoopback("10.127.0.1"));
}

TEST(LaunchArgumentsTest, KeepsTheRanksArguments) {
  const auto parsed = ParseLaunchArguments(
      {"--nproc=2", "--config=a.pbtxt", "--set", "x: 1", "--timeout", "90s",
       "--nprocs", "--", "--nproc=7", "--", "--help"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->nproc, 2);
  EXPECT_EQ(parsed->program, "train");
  EXPECT_EQ(parsed->timeout, absl::Seconds(90));
  EXPECT_FALSE(parsed->help);
  EXPECT_THAT(parsed->rest,
              ElementsAre("--config=a.pbtxt", "--set", "x: 1", "--nprocs",
                          "--nproc=7", "--", "--help"));
}

TEST(LaunchArgumentsTest, TakesAnotherProgram) {
  const auto parsed =
      ParseLaunchArguments({"--program=train_step_bench", "--nproc=2", "--json",
                            "--", "--program=a"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->program, "train_step_bench");
  EXPECT_THAT(parsed->rest, ElementsAre("--json", "--program=a"));
}

TEST(LaunchArgumentsTest, NamesWhatItRejects) {
  const auto message = [](const std::vector<std::string>& arguments) {
    return std::string(ParseLaunchArguments(arguments).status().message());
  };
  EXPECT_THAT(message({"--config=a"}), HasSubstr("--nproc is missing"));
  EXPECT_THAT(message({"--nproc=0"}), HasSubstr("--nproc=0 must be"));
  EXPECT_THAT(message({"--nproc"}), HasSubstr("--nproc needs a value"));
  EXPECT_THAT(message({"--nproc=2", "--timeout=90"}),
              HasSubstr("--timeout=90 must be"));
  EXPECT_TRUE(ParseLaunchArguments({"--help"})->help);
}

}  // namespace
}  // namespace tessera
