// Saves, stops and resumes runs of the `train` program, as a user does.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/checkpoint/safetensors.h"
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
using ::testing::Not;

void Damage(const std::string& file) {
  std::string bytes = ReadFile(file).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomically(file, bytes).ok());
}

// Puts a run of ToyTrain() without further flags into the new folder `run`. The
// tests share one such run, of which each gets a copy.
void TrainTo(const std::string& run) {
  static const std::string& trained = *new std::string(Folder("trained"));
  if (!FileExists(trained)) {
    ASSERT_EQ(Shell(ToyTrain({"--out=" + trained})).exit_code, 0);
  }
  ASSERT_EQ(Shell(absl::StrCat("cp -r ", trained, " ", run)).exit_code, 0);
}

// Trains with `flags` in a process that is killed and another that resumes, and
// expects the losses and files of a run without either.
// `common` flags are those of both.
void ExpectBitExactResume(const std::string& name, const std::string& flags,
                          const std::string& common = "") {
  const std::string straight = Folder(name + "_straight");
  const std::string resumed = Folder(name);
  const std::string save =
      "--set checkpoint.every_steps=10 --set training.eval_every_steps=4 " +
      common;
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
  EXPECT_EQ(Json(straight + end + "manifest.json")["files"]["ema.safetensors"],
            Json(resumed + end + "manifest.json")["files"]["ema.safetensors"]);
  const auto state = [&](const std::string& run) {
    nlohmann::json fields = Json(run + end + "state.json");
    // The flags are part of it.
    if (!flags.empty()) fields.erase("config_hash");
    return fields;
  };
  EXPECT_EQ(state(straight), state(resumed));
}

TEST(ResumeTest, ResumeInANewProcessIsBitExact) {
  // Like most users; the other tests have one thread, which is faster here.
  ::setenv("OMP_NUM_THREADS", "2", /*overwrite=*/1);
  ExpectBitExactResume("resumed", "");
  ::setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
}

TEST(ResumeTest, AnUpdateInTheNextStepChangesNoBit) {
  ExpectBitExactResume("deferred", "--set execution.defer_update=true");
}

TEST(ResumeTest, MuonsMomentumResumesBitForBit) {
  ExpectBitExactResume("muon", "--set execution.defer_update=true",
                       "--set optimizer.muon.lr=0.02 "
                       "--set training.micro_batches=2 "
                       "--set recompute.policy=BLOCK");
}

TEST(ResumeTest, NorMuonResumesBitForBit) {
  ExpectBitExactResume("normuon", "",
                       "--set optimizer.muon.normuon_beta2=0.9 "
                       "--set precision.mode=BF16");
}

TEST(ResumeTest, AnAverageResumesBitForBit) {
  ExpectBitExactResume("averaged", "--set execution.defer_update=true",
                       "--set 'optimizer.ema={decay: 0.9 warmup: true}' "
                       "--set optimizer.muon.lr=0.02 "
                       "--set precision.mode=BF16 "
                       "--set 'model.frozen=[\"layers.0.*\"]'");
}

TEST(ResumeTest, AnAverageMayBeginAndEndWithAResume) {
  const std::string run = Folder("averaged_later");
  TrainTo(run);
  // One more update by almost nothing: the average is that of two equal
  // weights.
  const Outcome begun = Shell(ToyTrain(
      {"--out=" + run, "--set training.steps=21 --set optimizer.ema={}",
       "--set optimizer.adamw.lr=1e-30"}));
  EXPECT_EQ(begun.exit_code, 0) << begun.output;
  EXPECT_THAT(begun.output,
              HasSubstr("step_00000020 has no averaged weights; the average "
                        "(optimizer.ema) starts from its weights"));
  const std::string second = run + "/checkpoints/step_00000021/";
  EXPECT_EQ(Json(second + "manifest.json")["files"]["ema.safetensors"],
            Json(second + "manifest.json")["files"]["model.safetensors"]);
  const Outcome ended =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=22"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("deleted: optimizer.ema"));
  EXPECT_FALSE(FileExists(run + "/checkpoints/step_00000022/ema.safetensors"));
}

TEST(ResumeTest, ACheckpointOfAnotherOptimizerIsRejected) {
  const std::string adamw = Folder("of_adamw"), muon = Folder("of_muon");
  const std::string set = "--set optimizer.muon.lr=0.02";
  TrainTo(adamw);
  ASSERT_EQ(Shell(ToyTrain({set, "--out=" + muon})).exit_code, 0);
  const Outcome with = Shell(ToyTrain({set, "--out=" + adamw}));
  EXPECT_EQ(with.exit_code, 2) << with.output;
  EXPECT_THAT(with.output, HasSubstr("layers.0.attn.q_proj.weight was trained "
                                     "by AdamW, but this run trains it by "
                                     "Muon; resume with"));
  const Outcome without = Shell(ToyTrain({"--out=" + muon}));
  EXPECT_EQ(without.exit_code, 2) << without.output;
  EXPECT_THAT(without.output, HasSubstr("was trained by Muon, but this run "
                                        "trains it by AdamW; resume with"));
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

TEST(ResumeTest, AResumedRunSupersedesRepeatedSteps) {
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

TEST(ResumeTest, SavesByTheClock) {
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

TEST(ResumeTest, StartsFromTheWeightsOfACheckpointRunOrModelFolder) {
  const std::string run = Folder("pretrained"), model = Folder("model_only");
  TrainTo(run);
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

TEST(ResumeTest, AResumeDoesNotNeedTheInitialWeights) {
  const std::string run = Folder("pretrained_gone"), tuned = Folder("tuned_on");
  TrainTo(run);
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

TEST(ResumeTest, InitialWeightsOfAnotherModelAreRefused) {
  const std::string run = Folder("pretrained_other");
  TrainTo(run);
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

TEST(ResumeTest, ResumingReportsChangesAndProgress) {
  const std::string run = Folder("changed");
  TrainTo(run);
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

TEST(ResumeTest, AnotherBatchSizeContinuesAtTheNextSequence) {
  const std::string run = Folder("batch_size");
  TrainTo(run);
  const Outcome resumed =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=23",
                      "--set training.batch_size=8"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(Json(run + "/checkpoints/step_00000023/state.json")["samples"],
            20 * 4 + 3 * 8);
}

TEST(ResumeTest, AnotherFunctionOfTheSameWeightsIsRejected) {
  const std::string run = Folder("function");
  TrainTo(run);
  for (const auto& [set, was] :
       {std::pair<std::string, std::string>{"model.num_heads=4", "num_heads=2"},
        {"model.rope_layout=HALVED", "rope_layout=INTERLEAVED"},
        {"model.qk_norm=HEAD", "qk_norm=NONE"},
        {"model.norm_placement=AFTER", "norm_placement=BEFORE"},
        {"model.rope_scaling.factor=8", "rope_scaling={factor: 1 low"},
        {"model.rope_theta=5e5", "rope_theta=10000"},
        {"model.norm_eps=1e-6", "norm_eps=1e-05"}}) {
    const Outcome refused = Shell(
        ToyTrain({"--out=" + run, "--set training.steps=21", "--set " + set}));
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("set model." + was));
  }
}

void ExpectAnotherSoftCapIsRejected(const std::string& field) {
  const std::string without = Folder(field + "_absent"), with = Folder(field);
  const std::string cap = absl::StrCat("--set ", field, "=30");
  TrainTo(without);
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
                        "only that way; remove " +
                        field));
  EXPECT_THAT(resumed(with, {}).output, HasSubstr(field + " is absent"));
  EXPECT_THAT(resumed(with, {absl::StrCat("--set ", field, "=50")}).output,
              HasSubstr(absl::StrCat("set ", field, "=30")));
}

TEST(ResumeTest, AnotherSoftCapIsRejected) {
  for (const char* field :
       {"model.logit_soft_cap", "model.attention_soft_cap"}) {
    SCOPED_TRACE(field);
    ExpectAnotherSoftCapIsRejected(field);
  }
}

TEST(ResumeTest, AnotherWindowIsRejected) {
  const std::string run = Folder("windowed");
  ASSERT_EQ(Shell(ToyTrain({"--out=" + run,
                            "--set 'model.attention_window=[{tokens: 9}]'"}))
                .exit_code,
            0);
  const Outcome resumed =
      Shell(ToyTrain({"--out=" + run, "--set training.steps=21",
                      "--set 'model.attention_window=[]'"}));
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_THAT(resumed.output, HasSubstr("layer 0 sees all tokens, but "));
  EXPECT_THAT(resumed.output, HasSubstr(" was trained with 9, "));
}

TEST(ResumeTest, ResumesFromAnOlderCheckpointOnlyInAnotherFolder) {
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

TEST(ResumeTest, ADamagedCheckpointIsRefusedByTensorName) {
  const std::string run = Folder("damaged");
  TrainTo(run);
  const std::string file = run + "/checkpoints/step_00000020/model.safetensors";
  Damage(file);
  const Outcome refused = Shell(ToyTrain({"--out=" + run}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("token_embeddings.weight"));
}

TEST(ResumeTest, AManifestOfAnotherStepThanItsStateIsRefused) {
  const std::string run = Folder("misdated"), other = Folder("misdated_more");
  TrainTo(run);
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

TEST(ResumeTest, ResumesAndSavesDespiteADamagedNewerCheckpoint) {
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

TEST(ResumeTest, ADamagedCheckpointIsNotOneOfTheNewestTwo) {
  const std::string run = Folder("damaged_between");
  ASSERT_EQ(Shell(ToyTrain({"--set checkpoint.every_steps=10", "--out=" + run}))
                .exit_code,
            0);
  Damage(run + "/checkpoints/step_00000020/model.safetensors");
  const Outcome resumed =
      Shell(ToyTrain({"--set checkpoint.every_steps=9", "--out=" + run,
                      "--set training.steps=27"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(ListDirectory(run + "/checkpoints").value(),
              ElementsAre("step_00000018", "step_00000020", "step_00000027"));
}

TEST(ResumeTest, ResumesOnlyWithTheSameDataInTheSameOrder) {
  const std::string run = Folder("same_data");
  const std::string documents = "--set data.synthetic.document_tokens=9 ";
  ASSERT_EQ(Shell(ToyTrain({documents, "--out=" + run})).exit_code, 0);
  for (const auto& [change, message] :
       {std::pair<std::string, std::string>{"training.seed=9",
                                            "training.seed is 9, but "},
        {"model.context_length=11", "set model.context_length=16"},
        {"data.shuffle=false", "data.shuffle is false, but "},
        {"data.documents=SEPARATE", "was trained on different data"},
        {"data.synthetic.successors=2", "was trained on different data"}}) {
    const Outcome refused =
        Shell(ToyTrain({documents, "--set training.steps=30 --set " + change,
                        "--out=" + run}));
    EXPECT_EQ(refused.exit_code, 2) << change;
    EXPECT_THAT(refused.output, HasSubstr(message));
  }
}

// The window begins with the process: wait 5, warmup 1, active 2.
TEST(ResumeTest, WarnsIfTooFewStepsAreLeftForATrace) {
  const std::string run = Folder("short_rest");
  const auto train = [&](const std::string& steps) {
    const Outcome trained =
        Shell(ToyTrain({"--out=" + run, "--set training.steps=" + steps,
                        "--set observe.trace.active=2"}));
    EXPECT_EQ(trained.exit_code, 0) << trained.output;
    return trained.output;
  };
  EXPECT_THAT(train("9"), Not(HasSubstr("nothing will be traced")));
  EXPECT_THAT(train("12"),
              HasSubstr("nothing will be traced: wait, warmup and active of "
                        "observe.trace are 8 steps together, and this process "
                        "does 3 steps"));
  EXPECT_THAT(train("20"), Not(HasSubstr("nothing will be traced")));
}

}  // namespace
}  // namespace tessera
