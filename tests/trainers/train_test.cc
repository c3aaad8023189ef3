// Runs the `train` and `generate` programs as a user would.

#include <map>
#include <string>
#include <utility>
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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void Damage(const std::string& file) {
  std::string bytes = ReadFile(file).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(file, bytes).ok());
}

TEST(TrainTest, ResumeInANewProcessIsBitExact) {
  const std::string straight = Folder("straight");
  const std::string resumed = Folder("resumed");
  const std::string save = "--set checkpoint.every_steps=10";
  ASSERT_EQ(Shell(ToyTrain({save, "--out=" + straight})).exit_code, 0);
  // The first process is killed after step 10's checkpoint is complete.
  const Outcome half =
      Shell(ToyTrain({save, "--out=" + resumed, "& PID=$!; until [ -e",
                      resumed + "/checkpoints/step_00000010",
                      "]; do sleep 0.01; done; kill -9 $PID; wait $PID"}));
  ASSERT_EQ(half.exit_code, 128 + 9) << half.output;
  const Outcome rest = Shell(ToyTrain({save, "--out=" + resumed}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;

  // Loss, gradient norm and rate of every step; later records supersede.
  std::map<int64_t, nlohmann::json> last;
  for (const auto& record : Records(resumed, "step")) {
    last[record["step"]] = record;
  }
  const std::vector<nlohmann::json> expected = Records(straight, "step");
  ASSERT_EQ(expected.size(), 20u);
  for (const auto& record : expected) {
    EXPECT_EQ(last[record["step"]], record);
  }
  EXPECT_EQ(Records(resumed, "resume").size(), 1u);
  // Every parameter, moment, the random state and the position, by checksum.
  const std::string end = "/checkpoints/step_00000020/";
  EXPECT_EQ(
      Json(straight + end + "manifest.json")["files"]["model.safetensors"],
      Json(resumed + end + "manifest.json")["files"]["model.safetensors"]);
  EXPECT_EQ(
      Json(straight + end + "manifest.json")["files"]["optimizer.safetensors"],
      Json(resumed + end + "manifest.json")["files"]["optimizer.safetensors"]);
  EXPECT_EQ(Json(straight + end + "state.json"),
            Json(resumed + end + "state.json"));
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
  // Neither recomputation nor counting changes a step.
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
  EXPECT_THAT(refused.output, HasSubstr(config + " is not of a run"));
  EXPECT_EQ(ReadFile(config).value(), "# mine\n");
}

TEST(TrainTest, ARunThatEndedBetweenItsFirstFilesStartsAgain) {
  // What cannot be replaced ends a run there, as a kill would.
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
  // The first goes on to its signal, whatever the second does meanwhile. That
  // is refused before it reads its data or where to start.
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

TEST(TrainTest, ResumingSaysWhatIsNewAndWhatIsDone) {
  const std::string run = Folder("changed");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const Outcome done = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("nothing to train: "));
  EXPECT_THAT(done.output, Not(HasSubstr("another config")));
  const Outcome changed =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=21",
                      "--set optimizer.adamw.lr=0.5"}));
  EXPECT_EQ(changed.exit_code, 0) << changed.output;
  EXPECT_THAT(changed.output, HasSubstr("modified: training.steps: 20 -> 21"));
  EXPECT_THAT(changed.output, HasSubstr("modified: optimizer.adamw.lr: "));
}

TEST(TrainTest, LogsTheRateThatEachStepWasTakenWith) {
  const std::string run = Folder("rate");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set optimizer.adamw.lr=0.03"}))
                .exit_code,
            0);
  // Two steps of warm-up come first.
  const auto steps = Records(run, "step");
  ASSERT_EQ(steps.size(), 20u);
  EXPECT_DOUBLE_EQ(steps[0]["lr"], 0.01);
  EXPECT_DOUBLE_EQ(steps[1]["lr"], 0.02);
  EXPECT_DOUBLE_EQ(steps[2]["lr"], 0.03);
}

TEST(TrainTest, AnotherBatchSizeGoesOnAtTheNextSequence) {
  const std::string run = Folder("batch_size");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const Outcome resumed =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=23",
                      "--set training.batch_size=8"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(Json(run + "/checkpoints/step_00000023/state.json")["samples"],
            20 * 4 + 3 * 8);
}

TEST(TrainTest, AnotherFunctionOfTheSameWeightsIsRefused) {
  const std::string run = Folder("function");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  for (const auto& [set, was] :
       {std::pair<std::string, std::string>{"model.num_heads=4", "num_heads=2"},
        {"model.rope_layout=HALVED", "rope_layout=INTERLEAVED"},
        {"model.rope_theta=5e5", "rope_theta=10000"},
        {"model.norm_eps=1e-6", "norm_eps=1e-05"}}) {
    const Outcome refused = Shell(
        ToyTrain({"--out=" + run, "--set training.steps=21", "--set " + set}));
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("set model." + was));
  }
}

TEST(TrainTest, GoesOnFromAnOlderCheckpointInAnotherFolderOnly) {
  const std::string run = Folder("branch"), other = Folder("branched");
  const std::string save = "--set checkpoint.every_steps=10";
  ASSERT_EQ(Shell(ToyTrain({save, "--out=" + run})).exit_code, 0);
  const std::string older = "--resume=" + run + "/checkpoints/step_00000010";
  const Outcome refused = Shell(ToyTrain({save, older, "--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("has a checkpoint of step 20"));
  const Outcome branched = Shell(ToyTrain({save, older, "--out=" + other}));
  EXPECT_EQ(branched.exit_code, 0) << branched.output;
  EXPECT_EQ(ListDirectory(other + "/checkpoints").value().size(), 1u);
}

TEST(TrainTest, ADamagedCheckpointIsRefusedByTensorName) {
  const std::string run = Folder("damaged");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string file = run + "/checkpoints/step_00000020/model.safetensors";
  Damage(file);
  const Outcome refused = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("lm_head.weight"));
}

TEST(TrainTest, AManifestOfAnotherStepThanItsStateIsRefused) {
  const std::string run = Folder("misdated"), other = Folder("misdated_more");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string best = run + "/best";  // a name without a step
  const Outcome refused = Shell(absl::StrCat(
      "mv ", run, "/checkpoints/step_00000020 ", best,
      "; sed -i 's/\"step\": 20/\"step\": 5/' ", best, "/manifest.json; ",
      ToyTrain({"--resume=" + best, "--out=" + other})));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output,
              HasSubstr("manifest.json is of step 5, state.json beside it of "
                        "step 20: one of them is damaged"));
  EXPECT_FALSE(FileExists(other));
}

TEST(TrainTest, GoesOnAndSavesBesideADamagedNewerCheckpoint) {
  const std::string run = Folder("damaged_newer");
  ASSERT_EQ(Shell(ToyTrain({"--set checkpoint.every_steps=10", "--out=" + run}))
                .exit_code,
            0);
  Damage(run + "/checkpoints/step_00000020/model.safetensors");
  const Outcome resumed =
      Shell(ToyTrain({"--set checkpoint.every_steps=5", "--out=" + run}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("step_00000020 is passed over"));
  EXPECT_THAT(ListDirectory(run + "/checkpoints").value(),
              ElementsAre("step_00000015", "step_00000020"));
  // The damaged one was replaced.
  EXPECT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  EXPECT_EQ(Records(run, "resume").back()["step"], 20);
}

TEST(TrainTest, ResumesWithTheSameDataInTheSameOrderOnly) {
  const std::string run = Folder("same_data");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  for (const auto& [change, message] :
       {std::pair<std::string, std::string>{"training.seed=9",
                                            "training.seed is 9, but "},
        {"model.context_length=11", "Set model.context_length=16"},
        {"data.shuffle=false", "data.shuffle is false, but "},
        {"data.synthetic.successors=2", "was trained on other data"}}) {
    const Outcome refused = Shell(
        ToyTrain({"--set training.steps=30 --set " + change, "--out=" + run}));
    EXPECT_EQ(refused.exit_code, 2) << change;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
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

TEST(TrainTest, ALossThatIsNotFiniteStopsUnderFiniteGradientsToo) {
  const std::string run = Folder("infinite_loss");
  // Huge weights of the head alone: every probability is 0 or 1, and so its
  // gradient stays small while the loss does not.
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
  for (const Case& c : {
           Case{"--set model.nmu_layers=3", "did you mean 'num_layers'"},
           Case{"--set training.steps=0", "training.steps: must be >= 1"},
           Case{"--config=configs/none.pbtxt", "configs/none.pbtxt"},
           Case{"--dry_run --set 'model.frozen=[\"nope\"]'",
                "--set: model.frozen[0]: pattern 'nope' matches no parameter"},
           Case{"--resume=/nowhere --out=" + Folder("x"), "/nowhere"},
       }) {
    const Outcome outcome = Shell(ToyTrain({c.argument}));
    EXPECT_EQ(outcome.exit_code, 2) << c.argument;
    EXPECT_THAT(outcome.output, HasSubstr(c.message));
  }
}

TEST(TrainTest, PrintsConfigAndPlanWithoutATrace) {
  const std::string run = Folder("untouched");
  const Outcome config = Shell(ToyTrain({"--print_config", "--out=" + run}));
  EXPECT_EQ(config.exit_code, 0);
  EXPECT_THAT(config.output, HasSubstr("beta1: 0.9"));  // a default
  const Outcome plan = Shell(ToyTrain({"--dry_run", "--out=" + run}));
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_THAT(plan.output, HasSubstr("NAIVE: supported"));
  EXPECT_FALSE(FileExists(run));
}

// Flags for `tokens` tokens as nanoGPT keeps them; `before` makes the file.
struct TokenFile {
  std::string before, flags;
};
TokenFile NanoGptTokens(const std::string& name, int tokens) {
  const std::string path = Folder(name);
  return {absl::StrCat("head -c ", 2 * tokens, " /dev/zero > ", path, "; "),
          absl::StrCat("--set 'data.token_files={train: \"", path,
                       "\" format: NANOGPT}'")};
}

TEST(TrainTest, SaysWhereNothingIsLeftToEvaluateOn) {
  for (const auto& [tokens, evaluates] :
       {std::pair<int, bool>{100, false}, {10000, true}}) {  // 1 % of them
    const std::string run = Folder("held_out");
    const TokenFile file = NanoGptTokens("tokens", tokens);
    const Outcome outcome =
        Shell(file.before + ToyTrain({file.flags, "--out=" + run}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(Records(run, "eval").empty(), !evaluates);
    const auto warning = HasSubstr(
        "warning: no evaluation: training.eval_every_steps is 10, but ");
    if (evaluates) {
      EXPECT_THAT(outcome.output, Not(warning));
    } else {
      EXPECT_THAT(outcome.output, warning);
      EXPECT_THAT(outcome.output, HasSubstr("raise data.validation_fraction"));
    }
  }
}

TEST(GenerateTest, EqualSeedsGiveEqualSamplesAndBadOptionsAreRefused) {
  const std::string run = Folder("generate");
  // The last --set of a oneof wins: real text, whose tokenizer is saved.
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run,
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string generate = absl::StrCat(
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run,
      " --prompt='int main' --max_tokens=20 ");
  const Outcome a = Shell(generate + "--seed=3");
  EXPECT_EQ(a.exit_code, 0);
  EXPECT_EQ(a.output.rfind("int main", 0), 0u) << a.output;
  EXPECT_EQ(a.output, Shell(generate + "--seed=3").output);
  EXPECT_NE(a.output, Shell(generate + "--seed=4").output);
  const Outcome refused = Shell(generate + "--top_p=0 --temperature=-1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("temperature must be >= 0"));
  EXPECT_THAT(refused.output, HasSubstr("top_p must be in (0, 1]"));
  const Outcome nowhere = Shell(generate + "--device=UNSPECIFIED");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.output, HasSubstr("--device=UNSPECIFIED: must be CPU"));
  const Outcome on_gpu = Shell(generate + "--device=CUDA");
  if (on_gpu.exit_code != 0) {  // this machine has none
    EXPECT_EQ(on_gpu.exit_code, 2);
    EXPECT_THAT(on_gpu.output, HasSubstr("use the CPU: --device=CPU\n"));
  }
}

TEST(GenerateTest, ARunOfTokensWithoutTextIsRefusedWithWhatToDo) {
  const std::string run = Folder("textless");
  const TokenFile file = NanoGptTokens("textless_tokens", 100);
  const Outcome refused = Shell(absl::StrCat(
      file.before, ToyTrain({file.flags, "--out=" + run}), "; ",
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(run + "/checkpoints/step_00000020 has no tokenizer: "));
  EXPECT_THAT(refused.output,
              HasSubstr("train on a folder of trainers:prepare_data"));
}

}  // namespace
}  // namespace tessera
