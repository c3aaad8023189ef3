#include "trainers/run/trainer.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/phase_observer.h"
#include "framework/data/prepare/prepare_text.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/weights.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/evaluation.h"
#include "trainers/run/run_folder.h"

namespace tessera {
namespace {

// Far longer than the toy's steps, even on a busy machine.
constexpr absl::Duration kStartUp = absl::Seconds(5);

// Makes a process's first step slow, as loading libraries does.
class SlowStart : public PhaseObserver {
 public:
  explicit SlowStart(int64_t first_step) : first_(first_step) {}
  void BeginStep(int64_t step) noexcept override {
    if (step == first_) absl::SleepFor(kStartUp);
  }
  void Begin(absl::string_view) noexcept override {}
  void End() noexcept override {}

 private:
  const int64_t first_;
};

// step_ms of all records when training up to step `steps`.
std::vector<double> StepTimes(const std::string& folder, int steps,
                              int first_step) {
  const KeepDeterminism keep;
  SlowStart phases(first_step);
  auto session = Toy("configs/tiny_cpu.pbtxt",
                     {absl::StrCat("training.steps=", steps),
                      "training.sample_tokens_at_end=0",
                      "training.eval_batches=0", "observe.log_every_steps=3"},
                     {.phases = &phases});
  auto run = OpenRunFolder(folder, "auto", /*writes=*/true);
  EXPECT_TRUE(run.ok()) << run.status();
  auto trainer =
      Trainer::Create(std::move(session), *std::move(run), TrainerOptions());
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<double> times;
  std::ifstream log(folder + "/run.jsonl");
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["type"] == "step") times.push_back(record["step_ms"]);
  }
  return times;
}

TEST(TrainerTest, TheFirstRecordExcludesTheStartUp) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/trainer_", getpid());
  ASSERT_TRUE(RemoveTree(folder).ok());
  // A mean over three steps would include a third of the start-up.
  const double bound = absl::ToDoubleMilliseconds(kStartUp) / 3;
  std::vector<double> times = StepTimes(folder, 6, 1);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_LT(times[0], bound);
  // The same for a process that resumes, except if its first step is the
  // record's only one.
  times = StepTimes(folder, 9, 7);
  ASSERT_EQ(times.size(), 3u);
  EXPECT_LT(times[2], bound);
  times = StepTimes(folder, 10, 10);
  ASSERT_EQ(times.size(), 4u);
  EXPECT_GT(times[3], bound);
}

// Notes all events; returns `answer` for a logged step.
class Noting : public RunObserver {
 public:
  std::vector<std::string> notes;
  absl::Status answer;

  absl::Status OnTrainStart(const RunDescription& run) override {
    return Note("start at ", run.first_step, " of ", run.steps);
  }
  absl::Status OnStepEnd(int64_t step) override { return Note("step ", step); }
  absl::Status OnStepLogged(const StepRecord& record) override {
    Note("logged ", record.step).IgnoreError();
    return answer;
  }
  absl::Status OnValidationEnd(const EvalRecord& record) override {
    return Note("validation ", record.step);
  }
  absl::Status OnSavedBytes(const SavedBytesRecord& record) override {
    return Note("saved bytes of ", record.step);
  }
  absl::Status OnCheckpointSaved(const CheckpointRecord& record) override {
    EXPECT_TRUE(FileExists(record.folder + "/manifest.json")) << record.folder;
    return Note("checkpoint ", record.step);
  }
  absl::Status OnSample(const SampleRecord& sample) override {
    return Note(sample.heading);
  }
  absl::Status OnTrainEnd(const absl::Status& result) override {
    return Note("end ", absl::StatusCodeToString(result.code()));
  }

 private:
  template <typename... Parts>
  absl::Status Note(const Parts&... parts) {
    notes.push_back(absl::StrCat(parts...));
    return absl::OkStatus();
  }
};

// Trains four steps in `folder` with `observers`.
absl::Status TrainObserved(const std::string& folder,
                           const std::vector<RunObserver*>& observers) {
  const KeepDeterminism keep;
  auto session =
      Toy("configs/tiny_cpu.pbtxt",
          {"training.steps=4", "training.sample_tokens_at_end=2",
           "training.eval_every_steps=4", "observe.log_every_steps=2",
           "observe.saved_bytes=true", "checkpoint.every_steps=2",
           "data.synthetic.successors=3"});
  RunFolder run = OpenRunFolder(folder, "never", /*writes=*/true).value();
  return Trainer::Create(std::move(session), std::move(run),
                         {.observers = observers})
      .value()
      ->Run();
}

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/", name, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder;
}

// Keeps the last validation record of each set.
class LastValidation : public RunObserver {
 public:
  std::map<std::string, EvalRecord> records;

  absl::Status OnValidationEnd(const EvalRecord& record) override {
    records[record.set] = record;
    return absl::OkStatus();
  }
};

TEST(TrainerTest, EvaluatesEachValidationWindowAtMostOnce) {
  // 60 tokens are 7 windows; 3 batches of 4 would be 12.
  for (const auto& [eval_batches, windows] : {std::pair{1, 4}, {3, 7}}) {
    SCOPED_TRACE(eval_batches);
    const KeepDeterminism keep;
    auto session =
        Toy("configs/tiny_cpu.pbtxt",
            {"data.synthetic={epoch_tokens: 1000 successors: 3}",
             "data.validation_fraction=0.06", "training.steps=2",
             "training.eval_every_steps=2", "training.sample_tokens_at_end=0",
             absl::StrCat("training.eval_batches=", eval_batches)});
    Session& trained = *session;
    ASSERT_EQ(trained.data().validation->windows(), 7);
    LastValidation validation;
    RunFolder run =
        OpenRunFolder(NewFolder("windows"), "never", /*writes=*/true).value();
    const auto trainer = Trainer::Create(std::move(session), std::move(run),
                                         {.observers = {&validation}})
                             .value();
    const absl::Status status = trainer->Run();
    ASSERT_TRUE(status.ok()) << status;
    const auto expected = Evaluate(trained.step(), *trained.validation_loader(),
                                   trained.group(), windows);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(validation.records["validation"].loss, expected->loss);
    EXPECT_EQ(validation.records["validation"].bits_per_byte, std::nullopt);
  }
}

// Trains four steps with further fields and evaluates after each second one.
LastValidation ValidationOf(const std::string& name,
                            const std::vector<std::string>& sets,
                            std::unique_ptr<Trainer>* trainer,
                            Session** session) {
  std::vector<std::string> all = {
      "training.steps=4", "training.eval_every_steps=2",
      "training.sample_tokens_at_end=0", "execution.defer_update=true"};
  all.insert(all.end(), sets.begin(), sets.end());
  auto made = Toy("configs/tiny_cpu.pbtxt", all);
  *session = made.get();
  LastValidation validation;
  RunFolder run =
      OpenRunFolder(NewFolder(name), "never", /*writes=*/true).value();
  *trainer = Trainer::Create(std::move(made), std::move(run),
                             {.observers = {&validation}})
                 .value();
  const absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(status.ok()) << status;
  return validation;
}

TEST(TrainerTest, EvaluatesTheAverageBesideTheWeights) {
  const KeepDeterminism keep;
  for (const char* const precision : {"FP32", "BF16", "BF16_PURE"}) {
    SCOPED_TRACE(precision);
    const std::string mode = absl::StrCat("precision.mode=", precision);
    std::unique_ptr<Trainer> with, without;
    Session *averaged = nullptr, *plain = nullptr;
    LastValidation both = ValidationOf(
        "with_ema", {mode, "optimizer.ema.decay=0.9"}, &with, &averaged);
    LastValidation one = ValidationOf("no_ema", {mode}, &without, &plain);
    EXPECT_EQ(both.records.size(), 2u);
    EXPECT_EQ(both.records["validation"].loss, one.records["validation"].loss);
    // A model with the average as its weights.
    ASSERT_TRUE(plain->step().Flush().ok());
    SetWeights(averaged->state().optimizer->ema()->average(),
               plain->state().parameters);
    const auto expected =
        Evaluate(plain->step(), *plain->validation_loader(), plain->group(),
                 plain->plan().config.training().batch_size());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const double loss = both.records["validation (EMA)"].loss;
    EXPECT_NEAR(loss, expected->loss,
                std::string(precision) == "BF16_PURE" ? 1e-4 : 0);
    EXPECT_NE(loss, both.records["validation"].loss);
  }
}

// Ids 0 to 4 are "", "a", "bcd", none and the beginning of a text.
class GapTokenizer : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view) const override {
    return std::vector<int32_t>();
  }
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    const char* const kTexts[] = {"", "a", "bcd", "", "<s>"};
    if (ids[0] == 3) return absl::OutOfRangeError("no such token");
    return kTexts[ids[0]];
  }
  TokenizerKind kind() const override { return TokenizerKind::kBytes; }
  int64_t vocab_size() const override { return 5; }
  int32_t eos_id() const override { return 0; }
  std::vector<int32_t> begin_ids() const override { return {4}; }
  std::string Serialize() const override { return ""; }
};

TEST(BytesOfTokensTest, CountsNoBytesForIdsWithoutText) {
  const auto bytes = BytesOfTokens(GapTokenizer(), 6);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_TRUE(
      bytes->equal(at::tensor({0, 1, 3, 0, 0, 0}, bytes->scalar_type())));
  EXPECT_EQ(BytesOfTokens(GapTokenizer(), 2)->numel(), 2);
}

// Prepares texts of bytes, each a document of `length` letters.
std::string PreparedLetters(const std::string& folder, int documents,
                            int length) {
  EXPECT_TRUE(MakeDirectories(folder).ok());
  std::vector<std::string> texts;
  for (int i = 0; i < documents; ++i) texts.emplace_back(length, 'a' + i % 9);
  EXPECT_TRUE(WriteFileAtomically(folder + "/text",
                                  absl::StrJoin(texts, "<|endoftext|>"))
                  .ok());
  const auto manifest = PrepareText(
      {folder + "/text"}, folder + "/tokens",
      {.tokenizer = TokenizerKind::kBytes, .validation_fraction = 0.3});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return folder + "/tokens";
}

void ExpectEvaluatesOnText(const std::string& device) {
  const KeepDeterminism keep;
  const std::string folder = NewFolder(absl::StrCat("sets_", device));
  const std::string train = PreparedLetters(folder + "/train", 40, 23),
                    other = PreparedLetters(folder + "/other", 90, 6);
  auto session =
      Toy("configs/tiny_cpu.pbtxt",
          {absl::StrCat("data={token_files { train: '", train,
                        "' validation_sets { name: 'other' files: '", other,
                        "' } }}"),
           absl::StrCat("training.device=", device), "model.vocab_size=257",
           "training.steps=2", "training.eval_every_steps=2",
           "training.eval_batches=100", "training.sample_tokens_at_end=0"});
  Session& trained = *session;
  LastValidation validation;
  RunFolder run =
      OpenRunFolder(folder + "/run", "never", /*writes=*/true).value();
  const auto trainer = Trainer::Create(std::move(session), std::move(run),
                                       {.observers = {&validation}})
                           .value();
  const absl::Status status = trainer->Run();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(validation.records.size(), 2u);
  for (const Session::Validation& set : trained.validation()) {
    SCOPED_TRACE(set.name);
    const int64_t windows = set.source->windows();
    const auto expected =
        Evaluate(trained.step(), *set.loader, trained.group(), windows);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(validation.records[set.name].loss, expected->loss);
    // All targets but the ends of documents are bytes.
    int64_t bytes = 0;
    for (int64_t first = 0; first < windows; first += 4) {
      const at::Tensor targets = set.loader->Load(first, windows)->targets_mbs;
      bytes += ((targets >= 0) & (targets < 256)).sum().item<int64_t>();
    }
    EXPECT_LT(bytes, expected->tokens);
    EXPECT_NEAR(validation.records[set.name].bits_per_byte.value_or(0),
                expected->loss * static_cast<double>(expected->tokens) /
                    std::log(2.0) / static_cast<double>(bytes),
                1e-9);
  }
  EXPECT_NE(validation.records["other"].loss,
            validation.records["validation"].loss);
}

TEST(TrainerTest, EvaluatesOnSeveralSetsOfText) {
  ExpectEvaluatesOnText("CPU");
}

TEST(GpuTrainerTest, EvaluatesOnSeveralSetsOfText) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  ExpectEvaluatesOnText("CUDA");
}

TEST(TrainerTest, ObserversReceiveEachEventOnce) {
  Noting first, second;
  const absl::Status status =
      TrainObserved(NewFolder("observed"), {&first, &second});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(second.notes, first.notes);
  // A checkpoint is complete some time after its step, before the next one.
  const auto saved =
      std::find(first.notes.begin(), first.notes.end(), "checkpoint 2");
  ASSERT_NE(saved, first.notes.end());
  EXPECT_GT(saved - first.notes.begin(), 4);
  first.notes.erase(saved);
  EXPECT_THAT(first.notes,
              testing::ElementsAre(
                  "start at 0 of 4", "saved bytes of 1", "step 1", "step 2",
                  "logged 2", "step 3", "step 4", "logged 4", "validation 4",
                  "checkpoint 4", "sample, token ids", "end OK"));
}

TEST(TrainerTest, AnObserverThatCannotWriteEndsTheRunWithItsWeightsSaved) {
  Noting full, after;
  full.answer = absl::FailedPreconditionError("disk full");
  const std::string folder = NewFolder("observer_failed");
  const absl::Status status = TrainObserved(folder, {&full, &after});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("disk full. Step 2 is saved in ", folder,
                         "/checkpoints/step_00000002; the run resumes from "
                         "there"));
  EXPECT_THAT(full.notes, testing::ElementsAre(
                              "start at 0 of 4", "saved bytes of 1", "step 1",
                              "step 2", "logged 2", "end FAILED_PRECONDITION"));
  // Receives the end of the run, but not the step.
  EXPECT_THAT(after.notes, testing::ElementsAre(
                               "start at 0 of 4", "saved bytes of 1", "step 1",
                               "step 2", "end FAILED_PRECONDITION"));
}

}  // namespace
}  // namespace tessera
