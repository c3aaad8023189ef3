// Runs the `train` program as a user does.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "framework/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TrainTest, AMissingDeviceNamesTheField) {
  const std::string folder = Folder("gpu");
  const Outcome refused =
      Shell("CUDA_VISIBLE_DEVICES= " +
            ToyTrain({"--set training.device=CUDA", "--out=" + folder}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("error: --set: training.device: "));
  EXPECT_FALSE(FileExists(folder));
}

TEST(TrainTest, ReportsWhatIsSavedForBackward) {
  const std::string count = "--set observe.saved_bytes=true";
  std::map<std::string, int64_t> bytes;
  std::map<std::string, std::vector<nlohmann::json>> steps;
  for (const std::string policy : {"NONE", "FFN", "BLOCK"}) {
    const std::string run = Folder("saved_" + policy);
    const Outcome outcome = Shell(
        ToyTrain({count, "--set recompute.policy=" + policy, "--out=" + run}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("saved for backward"));
    const auto records = Records(run, "saved");
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(records[0]["step"], 1);
    bytes[policy] = records[0]["bytes"];
    steps[policy] = Records(run, "step");
  }
  EXPECT_GT(bytes["NONE"], bytes["FFN"]);
  EXPECT_GT(bytes["FFN"], bytes["BLOCK"]);
  EXPECT_GT(bytes["BLOCK"], 0);
  // Neither recomputation nor the measurement changes a step.
  const std::string plain = Folder("not_counted");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + plain})).exit_code, 0);
  EXPECT_TRUE(Records(plain, "saved").empty());
  for (const auto& [policy, records] : steps) {
    EXPECT_EQ(records, Records(plain, "step")) << policy;
  }
}

TEST(TrainTest, SignalFinishesTheStepSavesAndSaysSo) {
  for (const auto& [name, code] :
       {std::pair<std::string, int>{"INT", 130}, {"TERM", 143}}) {
    const std::string run = Folder("stopped_" + name);
    const Outcome outcome = Shell(
        ToyTrain({"--set training.steps=1000000", "--out=" + run,
                  "& PID=$!; until grep -q '\"step\":3,'", run + "/run.jsonl",
                  "2>/dev/null; do sleep 0.01; done; kill -" + name,
                  "$PID; wait $PID"}));
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    const auto saved = ListDirectory(run + "/checkpoints").value();
    ASSERT_EQ(saved.size(), 1u) << name;
    EXPECT_GE(saved[0], "step_00000003");
  }
}

TEST(TrainTest, SignalInAStepThatIsSavedAnywayEndsAsInAnyOther) {
  const std::string run = Folder("stopped_saved");
  const Outcome outcome = Shell(ToyTrain(
      {"--set training.steps=1000000 --set checkpoint.every_steps=1",
       "--out=" + run, "& PID=$!; until grep -q '\"step\":3,'",
       run + "/run.jsonl", "2>/dev/null; do sleep 0.01; done; kill -TERM",
       "$PID; wait $PID"}));
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
}

TEST(TrainTest, AnExistingRunIsNeverOverwritten) {
  const std::string run = Folder("kept");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string log = ReadFile(run + "/run.jsonl").value();
  const Outcome refused = Shell(ToyTrain({"--resume=never", "--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("already holds a run"));
  EXPECT_EQ(ReadFile(run + "/run.jsonl").value(), log);
}

TEST(TrainTest, AConfigOfTheUsersIsNeverOverwritten) {
  const std::string run = Folder("users");
  const std::string config = run + "/config.pbtxt";
  ASSERT_TRUE(MakeDirectories(run).ok());
  ASSERT_TRUE(WriteFileAtomically(config, "# mine\n").ok());
  const Outcome refused = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(config + " exists, but its folder holds no run"));
  EXPECT_EQ(ReadFile(config).value(), "# mine\n");
}

TEST(TrainTest, ARunThatEndedBetweenItsFirstFilesStartsAgain) {
  // A file that cannot be replaced ends a run there, like a kill.
  const std::string run = Folder("begun"), config = run + "/config.pbtxt";
  ASSERT_TRUE(MakeDirectories(config + "/full").ok());
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 2);
  EXPECT_EQ(Records(run, "run").size(), 1u);
  ASSERT_TRUE(RemoveTree(config).ok());
  for (const std::string steps : {"20", "21"}) {
    const Outcome again =
        Shell(ToyTrain({"--out=" + run, "--set training.steps=" + steps}));
    EXPECT_EQ(again.exit_code, 0) << again.output;
    EXPECT_THAT(ReadFile(config).value(), HasSubstr("steps: " + steps));
  }
}

TEST(TrainTest, ARunIsTrainedByOneProcessAtATime) {
  const std::string run = Folder("shared");
  const std::string steps = "--set training.steps=1000000 --out=" + run;
  // The first run continues until its signal, whatever the second does. The
  // second is refused before it reads its data.
  const Outcome both = Shell(
      ToyTrain({steps, "& PID=$!; until grep -q '\"step\":3,'",
                run + "/run.jsonl", "2>/dev/null; do sleep 0.01; done;",
                ToyTrain({steps, "--set data.token_files.train=/nowhere"}),
                "; echo second $?; kill -INT $PID; wait $PID"}));
  EXPECT_EQ(both.exit_code, 130) << both.output;
  EXPECT_THAT(both.output, HasSubstr("is being trained by another process"));
  EXPECT_THAT(both.output, HasSubstr("second 2"));
  EXPECT_TRUE(Records(run, "resume").empty());
}

TEST(TrainTest, LogsTheRateOfEachStep) {
  const std::string run = Folder("rate");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set optimizer.adamw.lr=0.03"}))
                .exit_code,
            0);
  // The warm-up takes two steps.
  const auto steps = Records(run, "step");
  ASSERT_EQ(steps.size(), 20u);
  EXPECT_DOUBLE_EQ(steps[0]["lr"], 0.01);
  EXPECT_DOUBLE_EQ(steps[1]["lr"], 0.02);
  EXPECT_DOUBLE_EQ(steps[2]["lr"], 0.03);
}

TEST(TrainTest, DivergenceStopsBeforeTheUpdateNamingStepAndParameter) {
  const std::string run = Folder("diverged");
  const Outcome outcome =
      Shell(ToyTrain({"--out=" + run, "--set optimizer.adamw.lr=1e30",
                      "--set optimizer.clip_norm=1e30"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("step 2 gave a gradient that is not finite"));
  EXPECT_THAT(outcome.output, HasSubstr("first in token_embeddings.weight"));
}

TEST(TrainTest, DivergenceAfterAResumeNamesTheStepOfTheWholeRun) {
  const std::string run = Folder("diverged_later");
  ASSERT_EQ(
      Shell(ToyTrain({"--out=" + run, "--set training.steps=10"})).exit_code,
      0);
  // Step 11 makes the weights huge, so step 12 is the first bad one, whether
  // its own log line or a later one notices it.
  for (const std::string every : {"1", "5"}) {
    const Outcome outcome =
        Shell(ToyTrain({"--out=" + run, "--set optimizer.adamw.lr=1e30",
                        "--set optimizer.clip_norm=1e30",
                        "--set observe.log_every_steps=" + every,
                        "--set training.eval_every_steps=20"}));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr("step 12 gave a gradient that is not finite"));
  }
}

TEST(TrainTest, ANonFiniteLossStopsEvenWithFiniteGradients) {
  const std::string run = Folder("infinite_loss");
  // Only the head's weights are huge: every probability is 0 or 1, so its
  // gradient stays small but the loss does not.
  const Outcome outcome = Shell(ToyTrain(
      {"--out=" + run, "--set 'model.frozen=[\"token*\",\"layers*\",\"ln*\"]'",
       "--set optimizer.adamw.lr=1e37 --set optimizer.adamw.weight_decay=0"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(
      outcome.output,
      HasSubstr("step 2 gave a loss that is not finite (loss inf, every "
                "gradient is finite)"));
  EXPECT_EQ(Records(run, "step").size(), 1u);
  EXPECT_FALSE(FileExists(run + "/checkpoints"));
}

TEST(TrainTest, UserErrorsExitWithTwoAndNameWhatToChange) {
  struct Case {
    std::string argument, message;
  };
  const std::string attention = Folder("attention.pbtxt");
  ASSERT_TRUE(
      WriteFileAtomically(attention, "\nattention {\n  backend: FLASH_CUDA }")
          .ok());
  for (const Case& c : {
           Case{"--set model.nmu_layers=3", "did you mean 'num_layers'"},
           Case{"--set training.steps=0", "training.steps: must be >= 1"},
           Case{"--config=configs/none.pbtxt", "configs/none.pbtxt"},
           Case{"--dry_run --set 'model.frozen=[\"nope\"]'",
                "--set: model.frozen[0]: pattern 'nope' matches no parameter"},
           Case{"--resume=/nowhere --out=" + Folder("x"), "/nowhere"},
           Case{"--set attention.backend=FLASH_CUDA",
                "error: --set: attention.backend: attention backend "
                "FLASH_CUDA does not support "},
           Case{absl::StrCat("--config=", attention),
                absl::StrCat("error: ", attention,
                             ":3:3: attention.backend: attention backend ")},
           Case{"--set observe.trace.kernel_counters=true"
                " --set observe.trace.active=1",
                "error: --set: observe.trace.kernel_counters: needs a GPU"},
           Case{"--set 'model.frozen=[\"*\"]'",
                "error: --set: model.frozen: leaves nothing to train"},
           Case{"--print_config --plan_for=H200",
                "error: --print_config goes with none of --dry_run, "},
           Case{"--print_config --plan_layouts=cluster.pbtxt",
                "--plan_for and --plan_layouts: remove one"},
       }) {
    const Outcome outcome = Shell(ToyTrain({c.argument}));
    EXPECT_EQ(outcome.exit_code, 2) << c.argument;
    EXPECT_THAT(outcome.output, HasSubstr(c.message));
  }
}

TEST(TrainTest, WhatItPrintsFitsEightyColumns) {
  const std::string run = Folder("narrow");
  for (const std::string& flags :
       {absl::StrCat("--out=", run), std::string("--dry_run")}) {
    const Outcome outcome = Shell(ToyTrain({flags}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    for (absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
      const bool is_path = absl::StrContains(line, run);
      EXPECT_TRUE(is_path || line.size() <= 80) << line;
    }
  }
}

TEST(TrainTest, NoProgressBarOnADumbTerminal) {
  const std::string run = Folder("terminal");
  // script(1) provides a terminal.
  for (const auto& [environment, draws] :
       {std::pair<std::string, bool>{"TERM=xterm CI=", true},
        {"TERM=dumb CI=", false},
        {"TERM=xterm CI=true", false}}) {
    ASSERT_TRUE(RemoveTree(run).ok());
    const Outcome outcome = Shell(absl::StrCat(environment, " script -qec '",
                                               ToyTrain({"--out=" + run}),
                                               "' /dev/null < /dev/null"));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, Not(HasSubstr("\x1b")));
    if (draws) {
      EXPECT_THAT(outcome.output, HasSubstr("0s left  loss "));
    } else {
      EXPECT_THAT(outcome.output, Not(HasSubstr("left")));
    }
  }
}

TEST(TrainTest, WarnsIfThereIsNothingToEvaluateOn) {
  const std::string no =
      "warning: no evaluation: no validation data is held out ";
  const std::string part = "warning: evaluation on less than one sequence: ";
  struct Case {
    int tokens;  // 1 % is held out
    std::string warning;
    std::string numbers;
  };
  for (const auto& [tokens, warning, numbers] :
       {Case{100, no, ", 100 tokens, with data.validation_fraction 0.01; a "},
        Case{1000, part, "validation split of "}, Case{10000, "", ""}}) {
    const std::string run = Folder("held_out");
    const TokenFileFlags file = NanoGptTokens("tokens", tokens);
    const Outcome outcome =
        Shell(file.before + ToyTrain({file.flags, "--out=" + run}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(Records(run, "eval").empty(), warning == no);
    if (warning.empty()) {
      EXPECT_THAT(outcome.output, Not(HasSubstr("warning")));
      continue;
    }
    EXPECT_THAT(outcome.output, HasSubstr(warning));
    EXPECT_THAT(outcome.output, HasSubstr(numbers));
    EXPECT_THAT(outcome.output,
                HasSubstr("a sequence needs model.context_length + 1 = 17 "
                          "tokens. Raise data.validation_fraction"));
    const Outcome off =
        Shell(ToyTrain({file.flags, "--set training.eval_batches=0",
                        "--resume=never --out=" + Folder("eval_off")}));
    EXPECT_THAT(off.output, Not(HasSubstr("evaluation on"))) << off.output;
    EXPECT_THAT(off.output, Not(HasSubstr("no evaluation")));
  }
}

TEST(TrainTest, RejectsLessDataThanASequenceAndWarnsOfLessThanABatch) {
  const std::string run = Folder("little");
  const TokenFileFlags ten = NanoGptTokens("ten_tokens", 10);
  const Outcome refused =
      Shell(ten.before + ToyTrain({ten.flags, "--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("has 10 tokens"));
  EXPECT_THAT(refused.output, HasSubstr("17 (model.context_length + 1)"));
  const TokenFileFlags few = NanoGptTokens("few_tokens", 40);
  const Outcome repeats =
      Shell(few.before + ToyTrain({few.flags, "--out=" + run}));
  EXPECT_EQ(repeats.exit_code, 0) << repeats.output;
  EXPECT_THAT(repeats.output,
              HasSubstr("has 3 sequences of model.context_length 16, but "
                        "training.batch_size is 4: every step repeats some"));
}

// A shell loop that waits for step 3 of the run, then runs `change`.
std::string AfterStep3(const std::string& run, const std::string& change) {
  return absl::StrCat("& PID=$!; until grep -q '\"step\":3,' ", run,
                      "/run.jsonl 2>/dev/null; do sleep 0.01; done; ", change,
                      "; wait $PID");
}

TEST(TrainTest, SavesWhenAnotherProgramChangesATokenFile) {
  struct Case {
    std::string name, change, message;
  };
  for (const Case& c :
       {Case{"truncated", "truncate -s 0 ", ": past the end of the file"},
        Case{"overwritten", "", " is 65535, but every token was below 300"}}) {
    const std::string run = Folder("file_" + c.name);
    const TokenFileFlags file = NanoGptTokens("tokens_" + c.name, 10000);
    const std::string path = Folder("tokens_" + c.name);
    std::string change = c.change + path;
    if (c.name == "overwritten") {
      change = absl::StrCat("tr '\\0' '\\377' < /dev/zero | head -c 20000 | ",
                            "dd status=none conv=notrunc of=", path);
    }
    const Outcome outcome =
        Shell(file.before + ToyTrain({file.flags, "--out=" + run,
                                      "--set training.steps=1000000",
                                      AfterStep3(run, change)}));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("error: " + path + ", byte "));
    EXPECT_THAT(outcome.output, HasSubstr(c.message));
    EXPECT_THAT(outcome.output,
                HasSubstr(" is saved in " + run + "/checkpoints"));
    // The last finished step is saved; the run resumes from it once the file is
    // restored.
    const auto saved = ListDirectory(run + "/checkpoints").value();
    ASSERT_EQ(saved.size(), 1u);
    const int64_t step = Records(run, "step").back()["step"];
    EXPECT_EQ(saved[0], absl::StrFormat("step_%08d", step));
    const Outcome resumed = Shell(absl::StrCat(
        file.before,
        ToyTrain({file.flags, "--out=" + run,
                  absl::StrCat("--set training.steps=", step + 2)})));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_EQ(Records(run, "resume").back()["step"], step);
  }
}

}  // namespace
}  // namespace tessera
