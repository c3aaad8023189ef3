// Runs `train --dry_run` as a user does.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(DryRunTest, PrintsConfigAndPlanWithoutATrace) {
  const std::string run = Folder("untouched");
  const Outcome config = Shell(ToyTrain({"--print_config", "--out=" + run}));
  EXPECT_EQ(config.exit_code, 0);
  EXPECT_THAT(config.output, HasSubstr("beta1: 0.9"));  // the default
  const Outcome plan = Shell(ToyTrain({"--dry_run", "--out=" + run}));
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_THAT(plan.output, HasSubstr("NAIVE: supported"));
  EXPECT_FALSE(FileExists(run));
}

TEST(DryRunTest, PlansForAGpuThatIsNotPresent) {
  const Outcome plan = Shell(ToyTrain({"--dry_run", "--plan_for=H200"}));
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_THAT(plan.output,
              HasSubstr("NVIDIA H200, 139.80 GiB\nlayout      1 rank\n"));
  EXPECT_THAT(plan.output, HasSubstr("peak        during the "));
  EXPECT_THAT(plan.output, HasSubstr("training.batch_size "));
  EXPECT_THAT(plan.output, HasSubstr("* NONE "));
  EXPECT_THAT(plan.output, HasSubstr("* FLASH_CUDA "));
  const Outcome unknown = Shell(ToyTrain({"--dry_run", "--plan_for=H201"}));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("unknown GPU 'H201'; must be one of "));
  const Outcome trains = Shell(ToyTrain({"--plan_for=H200"}));
  EXPECT_EQ(trains.exit_code, 2);
  EXPECT_THAT(trains.output, HasSubstr("add --dry_run or --print_step"));
}

TEST(DryRunTest, PrintsAPlanThatDoesNotFitAndFails) {
  // 2.1 billion parameters of 16 bytes.
  const std::string flags =
      "--dry_run --plan_for=4090 --set model.d_model=4096 --set "
      "model.d_ff=16384"
      " --set model.num_heads=32 --set model.num_layers=8";
  const Outcome plan = Shell(ToyTrain({flags}));
  EXPECT_EQ(plan.exit_code, 3) << plan.output;
  const size_t table = plan.output.find("what fits ");
  const size_t error = plan.output.find("error: out of memory: this run needs");
  EXPECT_LT(table, error) << plan.output;
  EXPECT_NE(error, std::string::npos) << plan.output;

  const Outcome printed = Shell(ToyTrain({flags, "--json", "2>/dev/null"}));
  EXPECT_EQ(printed.exit_code, 3);
  const nlohmann::json json = nlohmann::json::parse(printed.output);
  EXPECT_FALSE(json["fits"]);
  EXPECT_EQ(json["device"], "NVIDIA GeForce RTX 4090");
  const nlohmann::json& memory = json["memory"];
  EXPECT_GT(memory["total"], memory["capacity"]);
  int64_t allocated = 0;
  for (const char* part :
       {"parameters", "shadow", "gradients", "optimizer", "activations",
        "activation_gradients", "workspace", "libraries", "other", "slack"}) {
    allocated += memory[part].get<int64_t>();
  }
  EXPECT_EQ(memory["allocated"], allocated);
  const int64_t reserved = allocated + memory["fragmentation"].get<int64_t>();
  EXPECT_GT(reserved, allocated);
  EXPECT_EQ(memory["reserved"], reserved);
  EXPECT_EQ(memory["total"], reserved + memory["context"].get<int64_t>());
  EXPECT_EQ(json["largest"]["training.batch_size"]["largest"], 0);
  EXPECT_GT(json["largest"]["model.num_layers"]["largest"], 0);
  EXPECT_EQ(json["recompute"].size(), 4u);
  EXPECT_TRUE(json["recompute"][0]["current"]);
  EXPECT_GT(json["backends"][0]["roofline_ms"], 0);
}

// How much attention documents leave depends on the batch.
TEST(DryRunTest, PackedDocumentsComputeAtMostADenseStep) {
  for (const char* documents : {"JOINED", "SEPARATE"}) {
    const Outcome plan = Shell(ToyTrain(
        {absl::StrCat("--dry_run --set data.synthetic.document_tokens=16 --set "
                      "data.documents=",
                      documents, " | grep -A1 ^step | tr -s '\\n ' ' '")}));
    EXPECT_EQ(absl::StrContains(plan.output, "tokens, at most "),
              absl::string_view(documents) == "SEPARATE")
        << plan.output;
    EXPECT_THAT(plan.output, HasSubstr(" TFLOP"));
  }
}

TEST(PlanLayoutsTest, PrintsTheLayoutsOfACluster) {
  const std::string run = Folder("layouts");
  const auto plan = [&](const std::string& flags) {
    return Shell(ToyTrain({flags, "--out=" + run}));
  };
  const std::string two = "--plan_layouts=configs/cluster/two_h100.pbtxt";
  const Outcome fits = plan(two);
  EXPECT_EQ(fits.exit_code, 0) << fits.output;
  EXPECT_THAT(fits.output, HasSubstr("with 2 x NVIDIA H100 80GB HBM3"));
  EXPECT_THAT(fits.output, HasSubstr("\nfirst  "));
  EXPECT_FALSE(FileExists(run));
  // 34 billion parameters of 14 bytes.
  const Outcome large =
      plan(two +
           " --set model.d_model=8192 --set model.d_ff=32768"
           " --set model.num_heads=64 --set model.num_layers=32");
  EXPECT_EQ(large.exit_code, 3) << large.output;
  EXPECT_LT(large.output.find("too large   2 ranks"),
            large.output.find("error: no layout of this cluster fits"));
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{"--plan_layouts=/nowhere",
                                            "/nowhere"},
        {two + " --dry_run", "--plan_layouts goes with none of --dry_run"},
        {two + " --simulate_world=8", "--plan_layouts goes with none of"}}) {
    const Outcome wrong = plan(flags);
    EXPECT_EQ(wrong.exit_code, 2) << wrong.output;
    EXPECT_THAT(wrong.output, HasSubstr(message));
  }
}

// The lines of `output` with an error.
std::string ErrorIn(const std::string& output) {
  return output.substr(std::min(output.find("error: "), output.size()));
}

TEST(DryRunTest, ADryRunMakesTheChecksOfARun) {
  const std::string run = Folder("for_dry_runs");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string files = "--set data.token_files.train=";
  const TokenFileFlags few = NanoGptTokens("dry_few", 5);
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{
            "--set checkpoint.init_from=/nowhere",
            "--set: checkpoint.init_from: /nowhere: neither a checkpoint"},
        {absl::StrCat("--set checkpoint.init_from=", run,
                      " --set model.d_ff=96"),
         "in this run's model it is F32 [96, 32]"},
        {files + "/nowhere*.bin",
         "--set: data.token_files.train: no file matches /nowhere*.bin"},
        {files + "/nowhere/a.bin",
         "--set: data.token_files.train: cannot open /nowhere/a.bin: No such"},
        {few.flags, "less than one training sequence"},
        {"--resume=/nowhere", "/nowhere: neither a checkpoint"},
        {"--resume=never --out=" + run, "already holds a run"},
        {absl::StrCat("--set training.steps=30 --set training.seed=7 --out=",
                      run),
         "set training.seed=0"},
        {absl::StrCat("--set training.steps=30 --set model.d_ff=96 --out=",
                      run),
         "tensor layers.0.ffn"}}) {
    const std::string folder = Folder("dry");
    const std::string out =
        absl::StrContains(flags, "--out") ? "" : "--out=" + folder;
    const Outcome trained = Shell(few.before + ToyTrain({flags, out}));
    EXPECT_EQ(trained.exit_code, 2) << flags;
    EXPECT_THAT(trained.output, HasSubstr(message));
    const Outcome dry = Shell(few.before + ToyTrain({flags, out, "--dry_run"}));
    EXPECT_EQ(dry.exit_code, 2) << flags;
    EXPECT_EQ(ErrorIn(dry.output), ErrorIn(trained.output));
    EXPECT_THAT(dry.output, HasSubstr("NAIVE: supported"));
    EXPECT_FALSE(FileExists(folder));
  }
  // Another machine may have the files.
  EXPECT_EQ(Shell(ToyTrain({"--set checkpoint.init_from=/nowhere --dry_run",
                            "--plan_for=H200"}))
                .exit_code,
            0);
  EXPECT_EQ(Shell(ToyTrain({"--dry_run --set training.steps=30 --out=" + run}))
                .exit_code,
            0);
}

}  // namespace
}  // namespace tessera
