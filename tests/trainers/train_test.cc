// Runs the `train` and `generate` programs as a user does.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/checkpoint/safetensors.h"
#include "framework/observe/report/figures.h"
#include "framework/observe/report/run_records.h"
#include "framework/observe/tensorboard_event.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/program.h"

namespace tessera {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

void Damage(const std::string& file) {
  std::string bytes = ReadFile(file).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(file, bytes).ok());
}

// Trains with `flags` in a process that is killed and another that resumes, and
// expects the losses and files of a run without either.
void ExpectBitExactResume(const std::string& name, const std::string& flags) {
  const std::string straight = Folder(name + "_straight");
  const std::string resumed = Folder(name);
  const std::string save =
      "--set checkpoint.every_steps=10 --set training.eval_every_steps=4";
  ASSERT_EQ(Shell(ToyTrain({save, "--out=" + straight})).exit_code, 0);
  // The first process is killed once step 10's checkpoint is complete.
  const Outcome half =
      Shell(ToyTrain({save, flags, "--out=" + resumed, "& PID=$!; until [ -e",
                      resumed + "/checkpoints/step_00000010",
                      "]; do sleep 0.01; done; kill -9 $PID; wait $PID"}));
  ASSERT_EQ(half.exit_code, 128 + 9) << half.output;
  const Outcome rest = Shell(ToyTrain({save, flags, "--out=" + resumed}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;

  // Loss, gradient norm and rate of every step; later records supersede earlier
  // ones.
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
  // All parameters, moments, random state and position, by checksum.
  const std::string end = "/checkpoints/step_00000020/";
  EXPECT_EQ(
      Json(straight + end + "manifest.json")["files"]["model.safetensors"],
      Json(resumed + end + "manifest.json")["files"]["model.safetensors"]);
  EXPECT_EQ(
      Json(straight + end + "manifest.json")["files"]["optimizer.safetensors"],
      Json(resumed + end + "manifest.json")["files"]["optimizer.safetensors"]);
  const auto state = [&](const std::string& run) {
    nlohmann::json fields = Json(run + end + "state.json");
    // The flags are part of it.
    if (!flags.empty()) fields.erase("config_hash");
    return fields;
  };
  EXPECT_EQ(state(straight), state(resumed));
}

TEST(TrainTest, ResumeInANewProcessIsBitExact) {
  ExpectBitExactResume("resumed", "");
}

TEST(TrainTest, AnUpdateInTheNextStepChangesNoBit) {
  ExpectBitExactResume("deferred", "--set execution.defer_update=true");
}

// The events of each file of a run, in the order in which TensorBoard reads the
// files.
std::vector<std::vector<tensorboard::Event>> EventFiles(
    const std::string& run) {
  std::vector<std::vector<tensorboard::Event>> files;
  const std::vector<std::string> names = ListDirectory(run).value();
  for (const std::string& name : names) {
    if (name.rfind("events.out.", 0) != 0) continue;
    std::vector<tensorboard::Event>& events = files.emplace_back();
    const std::string bytes = ReadFile(run + "/" + name).value();
    for (size_t at = 0; at < bytes.size();) {
      uint64_t size;
      std::memcpy(&size, bytes.data() + at, sizeof(size));
      EXPECT_TRUE(
          events.emplace_back().ParseFromArray(bytes.data() + at + 12, size));
      at += 12 + size + 4;
    }
  }
  return files;
}

TEST(TrainTest, AResumedRunSupersedesRepeatedSteps) {
  const std::string run = Folder("replayed");
  const std::string save = "--set checkpoint.every_steps=10";
  ASSERT_EQ(Shell(ToyTrain({save, "--out=" + run})).exit_code, 0);
  ASSERT_TRUE(RemoveTree(run + "/checkpoints/step_00000020").ok());
  ASSERT_EQ(Shell(ToyTrain({save, "--out=" + run})).exit_code, 0);
  const auto files = EventFiles(run);
  ASSERT_EQ(files.size(), 2u);
  for (const tensorboard::Event& event : files[0]) {
    EXPECT_FALSE(event.has_session_log());
  }
  const tensorboard::Event& start = files[1][1];  // after the version
  EXPECT_EQ(start.session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(start.step(), 11);
  EXPECT_EQ(files[1][2].step(), 11);
}

TEST(TrainTest, SavesByTheClock) {
  const std::string run = Folder("clock");
  // Only the clock requests a checkpoint.
  const Outcome outcome = Shell(ToyTrain(
      {"--set 'checkpoint={every_minutes: 0.005 keep_last: 100}'",
       "--set training.steps=1000000 --set observe.log_every_steps=1000000",
       "--set training.eval_every_steps=1000000 --out=" + run,
       "& PID=$!; until [ $(ls", run + "/checkpoints 2>/dev/null | wc -l)",
       "-ge 3 ] || ! kill -0 $PID; do sleep 0.01; done; kill -9 $PID;",
       "wait $PID"}));
  EXPECT_EQ(outcome.exit_code, 128 + 9) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      HasSubstr("checkpoints every 0.005 minutes and after the last step\n"));
  const Outcome usual =
      Shell(ToyTrain({"--set checkpoint={} --set training.steps=3",
                      "--out=" + Folder("clock_default")}));
  EXPECT_THAT(usual.output, HasSubstr("checkpoints every 15 minutes and "));
}

// All tensors of a checkpoint's model.
std::map<std::string, std::string> Weights(const std::string& folder) {
  const auto file = SafetensorsFile::Open(folder + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  std::map<std::string, std::string> weights;
  for (const TensorEntry& entry : (*file)->tensors()) {
    weights[entry.spec.name] = std::string((*file)->Bytes(entry));
  }
  return weights;
}

TEST(TrainTest, StartsFromTheWeightsOfACheckpointRunOrModelFolder) {
  const std::string run = Folder("pretrained"), model = Folder("model_only");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string checkpoint = run + "/checkpoints/step_00000020";
  ASSERT_EQ(Shell(absl::StrCat("mkdir ", model, "; cp ", checkpoint,
                               "/model.safetensors ", checkpoint,
                               "/config.pbtxt ", model))
                .exit_code,
            0);
  // Different data, context and precision; a rate of 0 keeps the weights.
  const std::string other =
      "--set data.synthetic.successors=2 --set training.seed=7"
      " --set model.context_length=8 --set training.steps=3"
      " --set optimizer.adamw.lr=1e-30 --set checkpoint.init_from=";
  for (const std::string& from : {checkpoint, run, model}) {
    const std::string tuned = Folder("tuned");
    // From another directory, with a relative path.
    const size_t slash = from.rfind('/');
    const Outcome outcome = Shell(absl::StrCat(
        "TRAIN=$(realpath ", FindRuntimeFile("trainers/train").value(),
        "); export RUNFILES_DIR=$(realpath ..); cd ", from.substr(0, slash),
        "; unset BUILD_WORKING_DIRECTORY; $TRAIN", ToyFlags(), other,
        from.substr(slash + 1), " --out=", tuned));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(Weights(tuned + "/checkpoints/step_00000003"),
              Weights(checkpoint));
    const auto records = Records(tuned, "init");
    ASSERT_EQ(records.size(), 1u);
    EXPECT_EQ(records[0]["step"], 0);
    EXPECT_EQ(records[0]["checkpoint_step"], from == model ? 0 : 20);
    EXPECT_EQ(
        Json(tuned + "/checkpoints/step_00000003/state.json")["optimizer_step"],
        3);
  }
}

TEST(TrainTest, AResumeDoesNotNeedTheInitialWeights) {
  const std::string run = Folder("pretrained_gone"), tuned = Folder("tuned_on");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string from = "--set checkpoint.init_from=" + run;
  ASSERT_EQ(Shell(ToyTrain({from, "--out=" + tuned})).exit_code, 0);
  ASSERT_TRUE(RemoveTree(run).ok());
  const Outcome resumed =
      Shell(ToyTrain({from, "--out=" + tuned, "--set training.steps=21"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  const std::string fresh = Folder("tuned_not");
  const Outcome refused = Shell(ToyTrain({from, "--out=" + fresh}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("error: --set: checkpoint.init_from: " +
                                        run + ": neither a checkpoint"));
  EXPECT_FALSE(FileExists(fresh));
  // The same field in a file.
  const std::string config = Folder("init.pbtxt");
  std::string tiny =
      ReadFile(FindRuntimeFile("configs/tiny_cpu.pbtxt").value()).value();
  const size_t own = tiny.find("checkpoint {");  // may be set only once
  tiny.erase(own, tiny.find('\n', own) - own);
  ASSERT_TRUE(WriteFileAtomically(
                  config, "checkpoint {\n  init_from: 'none'\n}\n" + tiny)
                  .ok());
  const Outcome in_file =
      Shell(ToyTrain({"--config=" + config, "--out=" + fresh}));
  EXPECT_EQ(in_file.exit_code, 2);
  EXPECT_THAT(in_file.output,
              HasSubstr(config + ":2:3: checkpoint.init_from: "));
}

TEST(TrainTest, InitialWeightsOfAnotherModelAreRefused) {
  const std::string run = Folder("pretrained_other");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  for (const auto& [set, message] :
       {std::pair<std::string, std::string>{
            "model.d_ff=96", "in this run's model it is F32 [96, 32]; set the"},
        {"model.num_layers=3", "tensors, but this run's model has "},
        {"model.num_heads=4", "set model.num_heads=2"}}) {
    const Outcome refused =
        Shell(ToyTrain({"--set checkpoint.init_from=" + run, "--set " + set,
                        "--out=" + Folder("tuned_other")}));
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output,
                HasSubstr("error: --set: checkpoint.init_from: "));
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

TEST(TrainTest, AMissingDeviceNamesTheField) {
  const Outcome refused =
      Shell("CUDA_VISIBLE_DEVICES= " +
            ToyTrain({"--set training.device=CUDA", "--out=" + Folder("gpu")}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("error: --set: training.device: "));
  EXPECT_FALSE(FileExists(Folder("gpu")));
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

TEST(TrainTest, ResumingReportsChangesAndProgress) {
  const std::string run = Folder("changed");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const Outcome done = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(done.output, HasSubstr("nothing to train: "));
  EXPECT_THAT(done.output, Not(HasSubstr("another config")));
  const Outcome changed = Shell(ToyTrain(
      {"--out=" + run, "--set training.steps=21",
       "--set optimizer.adamw.lr=0.5", "--set training.label_smoothing=0.5",
       "--set training.z_loss=0.5"}));
  EXPECT_EQ(changed.exit_code, 0) << changed.output;
  EXPECT_THAT(changed.output, HasSubstr("modified: training.steps: 20 -> 21"));
  EXPECT_THAT(changed.output, HasSubstr("modified: optimizer.adamw.lr: "));
  EXPECT_THAT(changed.output,
              HasSubstr("modified: training.label_smoothing: 0 -> 0.5"));
  EXPECT_THAT(changed.output, HasSubstr("modified: training.z_loss: 0 -> 0.5"));
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

TEST(TrainTest, AnotherBatchSizeContinuesAtTheNextSequence) {
  const std::string run = Folder("batch_size");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const Outcome resumed =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=23",
                      "--set training.batch_size=8"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(Json(run + "/checkpoints/step_00000023/state.json")["samples"],
            20 * 4 + 3 * 8);
}

TEST(TrainTest, AnotherFunctionOfTheSameWeightsIsRejected) {
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

TEST(TrainTest, AnotherSoftCapIsRejected) {
  const std::string without = Folder("uncapped"), with = Folder("capped");
  const std::string cap = "--set model.logit_soft_cap=30";
  ASSERT_EQ(Shell(ToyTrain({"--out=" + without})).exit_code, 0);
  ASSERT_EQ(Shell(ToyTrain({"--out=" + with, cap})).exit_code, 0);
  const auto resumed = [](const std::string& run,
                          const std::vector<std::string>& sets) {
    std::vector<std::string> flags = {"--out=" + run,
                                      "--set training.steps=21"};
    flags.insert(flags.end(), sets.begin(), sets.end());
    return Shell(ToyTrain(flags));
  };
  EXPECT_EQ(resumed(with, {cap}).exit_code, 0);
  EXPECT_THAT(resumed(without, {cap}).output,
              HasSubstr("was trained without it, and its weights are valid "
                        "only that way; remove model.logit_soft_cap"));
  EXPECT_THAT(resumed(with, {}).output,
              HasSubstr("model.logit_soft_cap is absent"));
  EXPECT_THAT(resumed(with, {"--set model.logit_soft_cap=50"}).output,
              HasSubstr("set model.logit_soft_cap=30"));
}

TEST(TrainTest, ResumesFromAnOlderCheckpointOnlyInAnotherFolder) {
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
  const std::string best = run + "/best";  // the name has no step
  ASSERT_EQ(Shell(absl::StrCat("mv ", run, "/checkpoints/step_00000020 ", best))
                .exit_code,
            0);
  // As written by an older program, without a checksum of itself.
  nlohmann::json manifest = Json(best + "/manifest.json");
  manifest["step"] = 5;
  manifest.erase("xxh3_64");
  ASSERT_TRUE(
      WriteFileAtomically(best + "/manifest.json", manifest.dump()).ok());
  const Outcome refused =
      Shell(ToyTrain({"--resume=" + best, "--out=" + other}));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output,
              HasSubstr("manifest.json is of step 5, but state.json is of step "
                        "20; one of them is damaged"));
  EXPECT_FALSE(FileExists(other));
}

TEST(TrainTest, ResumesAndSavesDespiteADamagedNewerCheckpoint) {
  const std::string run = Folder("damaged_newer");
  ASSERT_EQ(Shell(ToyTrain({"--set checkpoint.every_steps=10", "--out=" + run}))
                .exit_code,
            0);
  Damage(run + "/checkpoints/step_00000020/model.safetensors");
  const Outcome resumed =
      Shell(ToyTrain({"--set checkpoint.every_steps=5", "--out=" + run}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output,
              ContainsRegex("skipping checkpoint .*/step_00000020: "));
  EXPECT_THAT(ListDirectory(run + "/checkpoints").value(),
              ElementsAre("step_00000015", "step_00000020"));
  // The damaged checkpoint was replaced.
  EXPECT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  EXPECT_EQ(Records(run, "resume").back()["step"], 20);
}

TEST(TrainTest, ResumesOnlyWithTheSameDataInTheSameOrder) {
  const std::string run = Folder("same_data");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  for (const auto& [change, message] :
       {std::pair<std::string, std::string>{"training.seed=9",
                                            "training.seed is 9, but "},
        {"model.context_length=11", "set model.context_length=16"},
        {"data.shuffle=false", "data.shuffle is false, but "},
        {"data.synthetic.successors=2", "was trained on different data"}}) {
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
  EXPECT_THAT(config.output, HasSubstr("beta1: 0.9"));  // the default
  const Outcome plan = Shell(ToyTrain({"--dry_run", "--out=" + run}));
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_THAT(plan.output, HasSubstr("NAIVE: supported"));
  EXPECT_FALSE(FileExists(run));
}

TEST(TrainTest, PrintsEveryOpOfAStep) {
  const std::string run = Folder("printed");
  const Outcome table = Shell(ToyTrain({"--print_step", "--out=" + run}));
  EXPECT_EQ(table.exit_code, 0) << table.output;
  for (const char* const part :
       {"block_0..1/attention", "block_1..0/ffn", "w13", "swiglu",
        "cross_entropy", "gradient norm", "adamw", "\ntotals "}) {
    EXPECT_THAT(table.output, HasSubstr(part));
  }
  EXPECT_FALSE(FileExists(run));

  const Outcome printed =
      Shell(ToyTrain({"--print_step", "--json", "--plan_for=H200",
                      "--set execution.overlap_weight_gradients=false"}));
  ASSERT_EQ(printed.exit_code, 0) << printed.output;
  const nlohmann::json rows = nlohmann::json::parse(printed.output);
  double product_flops = 0;
  bool runs_flash_cuda = false;
  for (const nlohmann::json& row : rows) {
    // Scalars take no time worth counting.
    EXPECT_EQ(row["roofline_us"] > 0, row["bytes"] > 0) << row;
    runs_flash_cuda |= row["kernel"] == "FLASH_CUDA";
    if (row["kind"] == "attention") {
      EXPECT_EQ(row["products"], row["phase"] == "forward" ? 2 : 4);
    } else if (row["kind"] == "linear") {
      EXPECT_EQ(row["products"], row["phase"] == "forward" ? 1 : 2);
      product_flops += row["count"].get<double>() * row["flops"].get<double>();
    } else if (row["kind"] == "linear_cross_entropy") {
      // The loss has 7 for each logit.
      product_flops += row["flops"].get<double>() - 7.0 * 4 * 16 * 300;
    }
  }
  // 6 N for each of 4 x 16 tokens.
  constexpr double kMultiplied = 2 * (4 * 32 * 32 + 3 * 32 * 64) + 300 * 32;
  EXPECT_EQ(product_flops, 6 * kMultiplied * 4 * 16);
  EXPECT_TRUE(runs_flash_cuda);  // also in a build without CUDA
}

TEST(TrainTest, PrintsHowLongEachOpTook) {
  const std::string run = Folder("measured");
  const std::string measured = "--measured=" + run;
  // An op runs once in each.
  const std::string micro_batches = "--set training.micro_batches=2";
  const auto print = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"--print_step", measured, micro_batches};
    all.insert(all.end(), flags.begin(), flags.end());
    return Shell(ToyTrain(all));
  };
  EXPECT_THAT(print({}).output, HasSubstr("there is no folder"));
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, micro_batches})).exit_code, 0);
  EXPECT_THAT(print({}).output, HasSubstr("has no traced steps; train with"));
  EXPECT_TRUE(RemoveTree(run).ok());
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run, "--set observe.trace.active=2",
                            micro_batches}))
                .exit_code,
            0);

  const Outcome table = print({});
  EXPECT_EQ(table.exit_code, 0) << table.output;
  EXPECT_THAT(table.output, ContainsRegex("best us +took us +ratio\n"));
  EXPECT_THAT(table.output, ContainsRegex("\nlinear .* [1-9][0-9.]* +n/a\n"));
  const Outcome printed = print({"--json"});
  ASSERT_EQ(printed.exit_code, 0) << printed.output;
  double sum_ms = 0;
  for (const nlohmann::json& row : nlohmann::json::parse(printed.output)) {
    sum_ms +=
        row["count"].get<double>() * row["measured_us"].get<double>() * 1e-3;
  }
  const auto records = ReadRunRecords(run);
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_GT(sum_ms, 0);
  EXPECT_NEAR(sum_ms, *NumberAt(records->profile, "step.total_ms"),
              1e-6 * sum_ms);

  const Outcome other = print({"--set model.num_layers=3"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.output, HasSubstr("model.num_layers: 2 -> 3"));
  EXPECT_THAT(other.output, HasSubstr(run + "/config.pbtxt"));
  const Outcome gpu = print({"--plan_for=H200"});
  EXPECT_EQ(gpu.exit_code, 2);
  EXPECT_THAT(gpu.output,
              ContainsRegex("was measured on 1 x CPU.*, but this step is "
                            "planned for 1 x NVIDIA H200"));
  const Outcome trains = Shell(ToyTrain({measured}));
  EXPECT_EQ(trains.exit_code, 2);
  EXPECT_THAT(trains.output, HasSubstr("--measured is for --print_step"));

  const std::string folder = run + "/trace/" + records->profile_name;
  nlohmann::ordered_json profile = records->profile;
  profile["step"]["ops"][0]["op"] = "convolution";
  std::ofstream(folder + "/profile.json") << profile;
  EXPECT_THAT(print({}).output, HasSubstr("another build traced them"));
  profile = records->profile;
  profile["step"]["dropped"] = 5;
  std::ofstream(folder + "/profile.json") << profile;
  EXPECT_THAT(print({}).output, HasSubstr("lacks 5 records"));
}

TEST(TrainTest, PlansForAGpuThatIsNotPresent) {
  const Outcome plan = Shell(ToyTrain({"--dry_run", "--plan_for=H200"}));
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  EXPECT_THAT(plan.output, HasSubstr("NVIDIA H200, 139.80 GiB, 1 rank"));
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

TEST(TrainTest, PrintsAPlanThatDoesNotFitAndFails) {
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

// Flags for `tokens` tokens in nanoGPT's format; the command `before` creates
// the file.
struct TokenFile {
  std::string before, flags;
};
TokenFile NanoGptTokens(const std::string& name, int tokens) {
  const std::string path = Folder(name);
  return {absl::StrCat("head -c ", 2 * tokens, " /dev/zero > ", path, "; "),
          absl::StrCat("--set 'data.token_files={train: \"", path,
                       "\" format: NANOGPT}'")};
}

// The lines of `output` with an error.
std::string ErrorIn(const std::string& output) {
  return output.substr(std::min(output.find("error: "), output.size()));
}

TEST(TrainTest, ADryRunMakesTheChecksOfARun) {
  const std::string run = Folder("for_dry_runs");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run})).exit_code, 0);
  const std::string files = "--set data.token_files.train=";
  const TokenFile few = NanoGptTokens("dry_few", 5);
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
    const std::string out =
        absl::StrContains(flags, "--out") ? "" : "--out=" + Folder("dry");
    const Outcome trained = Shell(few.before + ToyTrain({flags, out}));
    EXPECT_EQ(trained.exit_code, 2) << flags;
    EXPECT_THAT(trained.output, HasSubstr(message));
    const Outcome dry = Shell(few.before + ToyTrain({flags, out, "--dry_run"}));
    EXPECT_EQ(dry.exit_code, 2) << flags;
    EXPECT_EQ(ErrorIn(dry.output), ErrorIn(trained.output));
    EXPECT_THAT(dry.output, HasSubstr("NAIVE: supported"));
    EXPECT_FALSE(FileExists(Folder("dry")));
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
    const TokenFile file = NanoGptTokens("tokens", tokens);
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
  const TokenFile ten = NanoGptTokens("ten_tokens", 10);
  const Outcome refused =
      Shell(ten.before + ToyTrain({ten.flags, "--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("has 10 tokens"));
  EXPECT_THAT(refused.output, HasSubstr("17 (model.context_length + 1)"));
  const TokenFile few = NanoGptTokens("few_tokens", 40);
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
    const TokenFile file = NanoGptTokens("tokens_" + c.name, 10000);
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

TEST(GenerateTest, EqualSeedsGiveEqualSamplesAndBadOptionsAreRefused) {
  const std::string run = Folder("generate");
  // Selects real text, whose tokenizer is saved; the last --set of a oneof
  // wins.
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
  EXPECT_THAT(refused.output,
              HasSubstr("temperature must be a finite number >= 0; is -1"));
  EXPECT_THAT(refused.output, HasSubstr("top_p must be in (0, 1]"));
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{
            "--temperature=inf", "temperature must be a finite number >= 0"},
        {"--max_tokens=2000000000", "max_tokens must be in [1, 1048576]"},
        {"--prompt=\"$(printf 'caf\\351')\"",
         "error: --prompt, byte 3: 0xe9 is not UTF-8; "}}) {
    const Outcome outcome = Shell(generate + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.output, HasSubstr(message));
  }
  const Outcome nowhere = Shell(generate + "--device=UNSPECIFIED");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.output, HasSubstr("--device=UNSPECIFIED: must be CPU"));
  const Outcome on_gpu = Shell(generate + "--device=CUDA");
  if (on_gpu.exit_code != 0) {  // this machine has no GPU
    EXPECT_EQ(on_gpu.exit_code, 2);
    EXPECT_THAT(on_gpu.output, HasSubstr("use the CPU: --device=CPU\n"));
  }
}

TEST(GenerateTest, NeedsOnlyModelConfigAndTokenizer) {
  const std::string run = Folder("generate_from"), model = Folder("model");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run,
                            "--set data.default_text.tokenizer=BYTES"}))
                .exit_code,
            0);
  const std::string checkpoint = run + "/checkpoints/step_00000020";
  const std::string flags =
      " --prompt='int main' --max_tokens=20 --checkpoint=";
  const std::string generate =
      FindRuntimeFile("trainers/generate").value() + flags;
  const Outcome whole = Shell(generate + run);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  ASSERT_EQ(Shell(absl::StrCat("mkdir ", model, "; cd ", checkpoint,
                               "; cp model.safetensors config.pbtxt "
                               "tokenizer.json ",
                               model, "; rm optimizer.safetensors state.json"))
                .exit_code,
            0);
  for (const std::string& from : {run, checkpoint, model}) {
    const Outcome outcome = Shell(generate + from);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, whole.output);
  }
  // Errors in the tokenizer name file and field.
  ASSERT_TRUE(
      WriteFileAtomically(model + "/tokenizer.json", R"({"kind": 5})").ok());
  const Outcome refused = Shell(generate + model);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.output,
      HasSubstr(model + "/tokenizer.json: kind must be a string; is 5"));
}

TEST(GenerateTest, ARunWithoutTokenizerIsRejectedWithAdvice) {
  const std::string run = Folder("textless");
  const TokenFile file = NanoGptTokens("textless_tokens", 100);
  const Outcome refused = Shell(absl::StrCat(
      file.before, ToyTrain({file.flags, "--out=" + run}), "; ",
      FindRuntimeFile("trainers/generate").value(), " --checkpoint=", run));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output,
              HasSubstr(run + "/checkpoints/step_00000020 has no tokenizer: "));
  EXPECT_THAT(refused.output, HasSubstr("--prompt_tokens=1,2,3"));
  EXPECT_THAT(refused.output,
              HasSubstr("train on a folder of trainers:prepare_data"));
}

TEST(GenerateTest, ContinuesTokenIdsWithoutATokenizer) {
  const std::string run = Folder("ids");
  const TokenFile file = NanoGptTokens("ids_tokens", 100);
  const Outcome trained =
      Shell(file.before + ToyTrain({file.flags, "--out=" + run,
                                    "--set training.sample_tokens_at_end=3"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output,
              ContainsRegex("--- sample, token ids\n0,[0-9]+,[0-9]+,[0-9]+\n"));
  const Outcome text_prompt = Shell(
      ToyTrain({file.flags, "--out=" + Folder("ids_text"),
                "--set training.sample_tokens_at_end=3",
                "--set training.steps=3 --set training.sample_prompt=once"}));
  EXPECT_EQ(text_prompt.exit_code, 0);
  EXPECT_THAT(text_prompt.output,
              HasSubstr("warning: no sample: the data has no tokenizer, and "
                        "training.sample_prompt: 'once' is not a token id"));
  const std::string generate =
      absl::StrCat(FindRuntimeFile("trainers/generate").value(),
                   " --checkpoint=", run, " --max_tokens=3 ");
  const Outcome ids = Shell(generate + "--prompt_tokens=7,0,299");
  EXPECT_EQ(ids.exit_code, 0) << ids.output;
  EXPECT_THAT(ids.output, MatchesRegex("7,0,299,[0-9]+,[0-9]+,[0-9]+\n"));
  for (const auto& [flags, message] :
       {std::pair<std::string, std::string>{
            "--prompt_tokens=1,x", "--prompt_tokens: 'x' is not a token id"},
        {"--prompt_tokens=1,-1", "'-1' is not a token id"},
        {"--prompt_tokens=1,300",
         "token id 300, but the model's vocabulary "
         "has ids from 0 to 299"},
        {"--prompt_tokens=1 --prompt=a", "both set"}}) {
    const Outcome refused = Shell(generate + flags);
    EXPECT_EQ(refused.exit_code, 2) << flags;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

}  // namespace
}  // namespace tessera
