// Runs one rank of a large layout as a user does: `train --simulate_world`.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLabel[] =
    "rank 7 of 512; sums have only this rank's part, so losses are not";

// ToyTrain() as rank 7 of 512.
std::string Simulate(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"--simulate_world=512", "--rank=7",
                                  "--set training.batch_size=512",
                                  "--set training.steps=3"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return ToyTrain(all);
}

class SimulateTest : public ::testing::TestWithParam<int> {};

TEST_P(SimulateTest, TrainsALabelledRunWithoutCheckpoints) {
  const std::string run = Folder(absl::StrCat("simulated_", GetParam()));
  const std::string zero = absl::StrCat("--set layout.zero=", GetParam());
  const Outcome outcome =
      Shell(Simulate({zero, "--set training.sample_tokens_at_end=8",
                      "--set checkpoint.every_steps=1", "--out=" + run}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(absl::StrCat("simulated   ", kLabel)),
                    HasSubstr("checkpoints none, because the run is simulated"),
                    Not(HasSubstr("sample"))));
  EXPECT_EQ(Records(run, "step").size(), 3u);
  const auto headers = Records(run, "run");
  ASSERT_EQ(headers.size(), 1u);
  EXPECT_THAT(headers[0]["device"]["simulated"].get<std::string>(),
              HasSubstr(kLabel));
  EXPECT_THAT(ReadFile(run + "/simulated.txt").value(), HasSubstr(kLabel));
  EXPECT_FALSE(FileExists(run + "/checkpoints"));
  EXPECT_EQ(Shell("ls " + run + "/events* >/dev/null").exit_code, 2);

  const Outcome page =
      Shell(absl::StrCat(FindRuntimeFile("bench/report").value(), " ", run));
  ASSERT_EQ(page.exit_code, 0) << page.output;
  // The page escapes the apostrophe.
  EXPECT_THAT(ReadFile(run + "/index.html").value(),
              HasSubstr("simulated: rank 7 of 512; sums have"));

  // Neither a real run nor another simulated one continues it.
  const Outcome real = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(real.exit_code, 2);
  EXPECT_THAT(real.output, HasSubstr("holds a simulated run"));
  const Outcome resumed =
      Shell(ToyTrain({"--resume=" + run, "--out=" + Folder("none")}));
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_THAT(resumed.output, HasSubstr("neither a checkpoint"));
}

INSTANTIATE_TEST_SUITE_P(Zero, SimulateTest, ::testing::Values(0, 1, 2, 3));

TEST(SimulateTest, ADryRunPrintsTheMemoryOfTheLayout) {
  const std::string run = Folder("simulated_dry");
  const auto dry = [&](const char* flags) {
    return Shell(Simulate({"--dry_run", flags, "--out=" + run}));
  };
  const Outcome printed = dry("--set layout.zero=1");
  EXPECT_EQ(printed.exit_code, 0) << printed.output;
  EXPECT_THAT(printed.output,
              AllOf(HasSubstr("simulated   rank 7 of 512; sums"),
                    HasSubstr("layout      512 ranks: shard 512, ZeRO 1")));
  EXPECT_FALSE(FileExists(run));
  const auto whole = nlohmann::json::parse(dry("--json").output);
  const auto divided =
      nlohmann::json::parse(dry("--json --set layout.zero=1").output);
  EXPECT_THAT(whole["simulated"].get<std::string>(), HasSubstr(kLabel));
  // Both pad each section to 512 parts, so that moments divide evenly.
  const int64_t moments = whole["memory"]["optimizer"];
  EXPECT_LT(divided["memory"]["optimizer"], moments / 256);
  const Outcome step = Shell(Simulate({"--print_step"}));
  EXPECT_THAT(step.output, HasSubstr("simulated   rank 7 of 512"));
  const auto rows =
      nlohmann::json::parse(Shell(Simulate({"--print_step --json"})).output);
  EXPECT_THAT(rows[0]["simulated"].get<std::string>(), HasSubstr(kLabel));
}

TEST(SimulateTest, TracedStepsAreThoseOfTheSameSimulation) {
  const std::string run = Folder("simulated_trace");
  const Outcome traced = Shell(
      Simulate({"--set observe.trace.active=1", "--set observe.trace.wait=0",
                "--set observe.trace.warmup=0", "--out=" + run}));
  ASSERT_EQ(traced.exit_code, 0) << traced.output;
  const std::string print = "--print_step --measured=" + run;
  EXPECT_EQ(Shell(Simulate({print})).exit_code, 0);
  const Outcome real =
      Shell(ToyTrain({"--set training.batch_size=512", print}));
  EXPECT_EQ(real.exit_code, 2);
  EXPECT_THAT(real.output, HasSubstr("simulates rank 7 of 512"));
}

TEST(SimulateTest, RefusesWrongFlagsBeforeTheRun) {
  const std::string out = Folder("refused");
  const std::string there = Folder("there");
  ASSERT_TRUE(MakeDirectories(there).ok());
  struct Refused {
    std::string command, message;
  };
  const auto train = [&](const std::string& flags) {
    return ToyTrain({flags, "--out=" + out});
  };
  for (const Refused& refused : std::vector<Refused>{
           {train("--simulate_world=512 --rank=512"),
            "--rank=512 must be in [0, 511]"},
           {train("--simulate_world=512 --rank=-1"),
            "--rank=-1 must be in [0, 511]"},
           {train("--simulate_world=-4"), "--simulate_world=-4 must be in [2"},
           {train("--rank=7"), "--rank=7 is for --simulate_world: add it"},
           {train("--rank=-1"), "--rank=-1 is for --simulate_world: add it"},
           {"RANK=0 WORLD_SIZE=1 " + train("--simulate_world=8"),
            "but RANK=0 is set"},
           {"WORLD_SIZE=8 " + train("--simulate_world=8"),
            "but WORLD_SIZE=8 is set"},
           {train("--simulate_world=512 --resume=/nowhere"),
            "--resume=/nowhere: a simulated run starts at step 0"},
           {train("--simulate_world=3"), "training.batch_size: is 4"},
           {Simulate({"--out=" + there}), "a simulated run needs a new"}}) {
    const Outcome outcome = Shell(refused.command);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(refused.message));
    EXPECT_FALSE(FileExists(out));
  }
}

}  // namespace
}  // namespace tessera
