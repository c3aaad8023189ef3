#include "trainers/run/checkpoint_saver.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/base/monotonic_clock.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/", name, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder;
}

CheckpointJob Job(Session& session, const std::string& directory,
                  int64_t step) {
  return {.directory = directory,
          .step = step,
          .begun = absl::UnixEpoch(),
          .state = ExportState(session.state())};
}

// The checksums of all tensors of a checkpoint.
nlohmann::json TensorsOf(const std::string& directory, int64_t step) {
  const std::string path =
      absl::StrCat(directory, "/", CheckpointName(step), "/manifest.json");
  nlohmann::json files = ParseJson(ReadFile(path).value())["files"];
  return {files[std::string(kModelFile)], files[std::string(kOptimizerFile)]};
}

// The step of the newest checkpoint, verified; -1 if there is none.
int64_t NewestStep(const std::string& directory) {
  const auto latest = LatestGood(directory);
  if (!latest.ok()) return -1;
  EXPECT_THAT(latest->warnings, IsEmpty());
  return latest->checkpoint->step();
}

// Holds up the writer at an operation until Open() is called.
class Gate {
 public:
  explicit Gate(std::string operation) : operation_(std::move(operation)) {}

  WritePointHook hook() {
    return [this](absl::string_view operation) {
      if (!closed_ || !absl::StartsWith(operation, operation_)) return;
      open_.WaitForNotification();
    };
  }
  void Close() { closed_ = true; }
  void Open() { open_.Notify(); }

 private:
  const std::string operation_;
  std::atomic<bool> closed_ = false;
  absl::Notification open_;
};

// Saves steps 1 and `step`, and trains on while the second save is held up at
// `operation`. Expects that the first checkpoint stays the newest meanwhile,
// and that the second one has the bits of its step.
void SaveAndTrainOn(const std::function<std::unique_ptr<Session>()>& create,
                    int64_t step, const std::string& operation) {
  SCOPED_TRACE(absl::StrCat("step ", step, " held up at ", operation));
  const KeepDeterminism keep;
  const std::string directory = NewFolder("saver"), plain = NewFolder("plain");
  {
    const auto session = create();
    Gate gate(operation);
    CheckpointSaver saver(session->state(), &session->step(),
                          {.write_point = gate.hook()});
    Train(*session, 1);
    ASSERT_TRUE(saver.Start(Job(*session, directory, 1), false).ok());
    ASSERT_EQ(saver.Collect(/*waits=*/true)->status, absl::OkStatus());
    Train(*session, session->step(), 1, step - 1);
    gate.Close();
    ASSERT_TRUE(saver.Start(Job(*session, directory, step), false).ok());
    Train(*session, session->step(), step, 3);
    EXPECT_FALSE(saver.Collect(/*waits=*/false).has_value());
    EXPECT_TRUE(saver.in_flight());
    EXPECT_EQ(NewestStep(directory), 1);
    gate.Open();
    const auto saved = saver.Collect(/*waits=*/true);
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->status, absl::OkStatus());
    EXPECT_EQ(saved->folder,
              absl::StrCat(directory, "/", CheckpointName(step)));
    EXPECT_FALSE(saver.in_flight());
  }
  const auto session = create();
  CheckpointSaver saver(session->state(), &session->step(),
                        {.background = false});
  Train(*session, 1);
  Train(*session, session->step(), 1, step - 1);
  ASSERT_TRUE(saver.Start(Job(*session, plain, step), false).ok());
  EXPECT_EQ(NewestStep(plain), step);  // without Collect()
  EXPECT_EQ(TensorsOf(directory, step), TensorsOf(plain, step));
}

TEST(CheckpointSaverTest, SavesTheStepAtWhichItStartedWhileTrainingContinues) {
  for (const char* defer : {"false", "true"}) {
    for (const char* precision : {"FP32", "BF16", "BF16_PURE"}) {
      SCOPED_TRACE(absl::StrCat(precision, ", deferred update: ", defer));
      SaveAndTrainOn(
          [&] {
            return Toy("configs/tiny_cpu.pbtxt",
                       {absl::StrCat("execution.defer_update=", defer),
                        absl::StrCat("precision.mode=", precision)});
          },
          3, "make");
    }
  }
}

TEST(CheckpointSaverTest, TheEarlierCheckpointIsTheNewestUntilTheLastMoment) {
  SaveAndTrainOn([] { return Toy("configs/tiny_cpu.pbtxt"); }, 2, "rename");
}

TEST(CheckpointSaverTest, AFailedSaveIsReportedAndTheNextOneSucceeds) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("failed");
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  std::atomic<bool> fails = true;
  const auto remove = [&](absl::string_view operation) {
    if (fails && absl::StartsWith(operation, "create") &&
        absl::EndsWith(operation, kStateFile)) {
      EXPECT_TRUE(RemoveTree(directory).ok());
    }
  };
  CheckpointSaver saver(session->state(), &session->step(),
                        {.write_point = remove});
  ASSERT_TRUE(saver.Start(Job(*session, directory, 1), false).ok());
  const auto failed = saver.Collect(/*waits=*/true);
  EXPECT_EQ(failed->status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(failed->status.message()),
              ::testing::HasSubstr("cannot create "));
  EXPECT_EQ(failed->folder, "");
  fails = false;
  ASSERT_TRUE(saver.Start(Job(*session, directory, 2), false).ok());
  EXPECT_EQ(saver.Collect(/*waits=*/true)->status, absl::OkStatus());
  EXPECT_EQ(NewestStep(directory), 2);
}

TEST(CheckpointSaverTest, ItsEndFinishesTheSaveInFlight) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("ended");
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  Train(*session, 1);
  {
    CheckpointSaver saver(session->state(), &session->step(), {});
    saver.Prepare();
    ASSERT_TRUE(saver.Start(Job(*session, directory, 1), false).ok());
  }
  EXPECT_EQ(NewestStep(directory), 1);
  Train(*session, session->step(), 1, 1);  // nothing is left to wait for
}

TEST(CheckpointSaverTest, WithoutMemoryForACopyASaveIsCompleteAtOnce) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("no_memory");
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  int asked = 0;
  CheckpointSaver saver(session->state(), &session->step(),
                        {.free_host_bytes = [&asked] {
                          ++asked;
                          return int64_t{100'000};
                        }});
  testing::internal::CaptureStderr();
  for (const int64_t step : {1, 2}) {
    ASSERT_TRUE(saver.Start(Job(*session, directory, step), false).ok());
    EXPECT_EQ(NewestStep(directory), step);
    EXPECT_EQ(saver.Collect(/*waits=*/false)->status, absl::OkStatus());
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: a copy of weights and moments takes 0.2 MiB of host "
            "memory, and 0.1 MiB are free; training waits while checkpoints "
            "are written\n");
  EXPECT_EQ(asked, 1);
}

TEST(CheckpointSaverTest, ACallerThatWaitsGetsNoCopy) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("waits");
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  CheckpointSaver saver(session->state(), &session->step(),
                        {.free_host_bytes = []() -> int64_t {
                          ADD_FAILURE() << "takes memory";
                          return 0;
                        }});
  ASSERT_TRUE(saver.Start(Job(*session, directory, 1), /*waits=*/true).ok());
  EXPECT_EQ(NewestStep(directory), 1);
}

TEST(CheckpointSaverTest, RemovesOlderCheckpointsOnceTheNewOneIsComplete) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("pruned");
  const auto session = Toy("configs/tiny_cpu.pbtxt");
  CheckpointSaver saver(session->state(), &session->step(), {});
  for (const int64_t step : {1, 2, 3}) {
    CheckpointJob job = Job(*session, directory, step);
    job.retention = RetentionPolicy{.keep_last = 2};
    ASSERT_TRUE(saver.Start(std::move(job), false).ok());
    EXPECT_EQ(saver.Collect(/*waits=*/true)->status, absl::OkStatus());
  }
  EXPECT_THAT(
      ListDirectory(directory).value(),
      ::testing::UnorderedElementsAre("step_00000002", "step_00000003"));
}

// A step that changes nothing need not wait.
TEST(BeforeNextUpdateTest, OnlyTheFirstUpdateCallsIt) {
  for (const bool defers : {false, true}) {
    SCOPED_TRACE(defers);
    const KeepDeterminism keep;
    const auto session = Toy(
        "configs/tiny_cpu.pbtxt",
        {absl::StrCat("execution.defer_update=", defers ? "true" : "false")});
    TrainStep& step = session->step();
    int64_t sample = 0;
    const auto run = [&] {
      const Batch batch = session->train_loader().Load(sample).value();
      sample += session->train_loader().global_batch();
      EXPECT_EQ(step.Run(batch, 1e-2), absl::OkStatus());
    };
    int calls = 0;
    const auto wait = [&calls] { ++calls; };
    run();
    ASSERT_TRUE(step.Flush().ok());
    step.BeforeNextUpdate(wait);
    run();
    EXPECT_EQ(calls, defers ? 0 : 1);
    run();
    EXPECT_EQ(calls, 1);
    ASSERT_TRUE(step.Flush().ok());
    EXPECT_EQ(calls, 1);
    run();
    step.BeforeNextUpdate(wait);
    ASSERT_TRUE(step.Flush().ok());
    EXPECT_EQ(calls, defers ? 2 : 1);
  }
}

class GpuCheckpointSaverTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  }
};

// The copy takes longer than a step of so few tokens.
std::unique_ptr<Session> FewTokens(std::vector<std::string> sets) {
  sets.insert(sets.end(),
              {"precision.mode=BF16", "execution.tune_products=false",
               "training.deterministic=true", "training.batch_size=1",
               "model.context_length=128", "model.num_layers=2"});
  auto session = Session::Create(GpuSizedConfig(sets), {});
  EXPECT_TRUE(session.ok()) << session.status();
  return *std::move(session);
}

TEST_F(GpuCheckpointSaverTest, AnUpdateWaitsForTheCopy) {
  for (const char* mode : {"EAGER", "GRAPH"}) {
    for (const char* defer : {"false", "true"}) {
      SCOPED_TRACE(absl::StrCat(mode, ", deferred update: ", defer));
      // A graph is recorded in the third step.
      for (const int64_t step : {2, 5}) {
        SaveAndTrainOn(
            [&] {
              return FewTokens(
                  {absl::StrCat("execution.mode=", mode),
                   absl::StrCat("execution.defer_update=", defer)});
            },
            step, "make");
      }
    }
  }
}

TEST_F(GpuCheckpointSaverTest, ReportsHowLongTheDeviceWaited) {
  const KeepDeterminism keep;
  const std::string directory = NewFolder("waited");
  auto session = Session::Create(GpuSizedConfig({}), {}).value();
  CheckpointSaver saver(session->state(), &session->step(), {});
  Train(*session, 4);
  CheckpointJob job = Job(*session, directory, 4);
  job.begun = MonotonicNow();
  ASSERT_TRUE(saver.Start(std::move(job), false).ok());
  Train(*session, session->step(), 4, 3);
  const auto saved = saver.Collect(/*waits=*/true);
  EXPECT_EQ(saved->status, absl::OkStatus());
  EXPECT_GT(saved->held_up, absl::ZeroDuration());
  EXPECT_GT(saved->writing, absl::ZeroDuration());
  RecordProperty("held_up_ms", absl::ToDoubleMilliseconds(saved->held_up));
  RecordProperty("writing_ms", absl::ToDoubleMilliseconds(saved->writing));
}

}  // namespace
}  // namespace tessera
