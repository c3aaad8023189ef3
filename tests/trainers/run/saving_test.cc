// Runs that train while checkpoints are written.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "framework/base/file.h"
#include "framework/base/json.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Longer than several steps of the toy.
constexpr absl::Duration kSlow = absl::Milliseconds(500);

std::string NewFolder(const std::string& name) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/saving_", name, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return folder;
}

// Whether `operation` is on the checkpoint of `step`.
bool IsOf(int64_t step, absl::string_view operation) {
  return absl::StrContains(operation, CheckpointName(step));
}

// Notes steps and checkpoints; calls `at_step` after each step.
class Noting : public RunObserver {
 public:
  std::vector<std::string> notes;
  std::function<absl::Status(int64_t)> at_step;

  absl::Status OnStepEnd(int64_t step) override {
    notes.push_back(absl::StrCat("step ", step));
    return at_step == nullptr ? absl::OkStatus() : at_step(step);
  }
  absl::Status OnCheckpointSaved(const CheckpointRecord& record) override {
    EXPECT_TRUE(Checkpoint::Open(record.folder).ok());
    EXPECT_GT(record.writing_s, 0);
    notes.push_back(absl::StrCat("checkpoint ", record.step));
    return absl::OkStatus();
  }
  int64_t IndexOf(const std::string& note) const {
    return std::find(notes.begin(), notes.end(), note) - notes.begin();
  }
};

struct Saving {
  std::vector<std::string> sets;
  WritePointHook write_point;
  RunObserver* observer = nullptr;
  Session** session = nullptr;  // receives the run's
};

// Trains six steps in `folder`, and resumes if there is a checkpoint.
absl::Status TrainIn(const std::string& folder, const Saving& saving) {
  const KeepDeterminism keep;
  std::vector<std::string> sets = {
      "training.steps=6", "training.sample_tokens_at_end=0",
      "training.eval_batches=0", "observe.log_every_steps=1",
      "checkpoint={every_steps: 2 keep_last: 9}"};
  sets.insert(sets.end(), saving.sets.begin(), saving.sets.end());
  auto session = Toy("configs/tiny_cpu.pbtxt", sets);
  if (saving.session != nullptr) *saving.session = session.get();
  RunFolder run = OpenRunFolder(folder, "auto", /*writes=*/true).value();
  TrainerOptions options = {.write_point = saving.write_point};
  if (saving.observer != nullptr) options.observers = {saving.observer};
  auto trainer =
      Trainer::Create(std::move(session), std::move(run), std::move(options));
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return (*trainer)->Run();
}

std::vector<std::string> CheckpointsIn(const std::string& folder) {
  std::vector<std::string> names =
      ListDirectory(folder + "/checkpoints").value();
  std::sort(names.begin(), names.end());
  return names;
}

// A checkpoint's manifest, without what differs between configs.
nlohmann::json FilesOf(const std::string& folder, int64_t step) {
  nlohmann::json files =
      ParseJson(ReadFile(absl::StrCat(folder, "/checkpoints/",
                                      CheckpointName(step), "/manifest.json"))
                    .value())["files"];
  files.erase(std::string(kConfigFile));
  files.erase(std::string(kStateFile));
  return files;
}

TEST(SavingTest, TrainingContinuesAndTheBitsAreThoseOfARunThatStops) {
  const std::string folder = NewFolder("beside"), stops = NewFolder("stops");
  absl::Mutex mutex;
  int64_t steps = 0, seen = 0;
  Noting noting;
  noting.at_step = [&](int64_t step) {
    const absl::MutexLock lock(&mutex);
    steps = step;
    return absl::OkStatus();
  };
  // The save of step 2 gets its name only after step 4.
  const auto hook = [&](absl::string_view operation) {
    if (!absl::StartsWith(operation, "rename") || !IsOf(2, operation)) return;
    const absl::MutexLock lock(&mutex);
    const auto trained = [&steps] { return steps >= 4; };
    EXPECT_TRUE(
        mutex.AwaitWithTimeout(absl::Condition(&trained), absl::Seconds(60)));
    seen = steps;
    EXPECT_THAT(CheckpointsIn(folder), Each(StartsWith(".tmp-")));
  };
  ASSERT_EQ(TrainIn(folder, {.write_point = hook, .observer = &noting}),
            absl::OkStatus());
  EXPECT_GE(seen, 4);
  EXPECT_GT(noting.IndexOf("checkpoint 2"), noting.IndexOf("step 4"));
  EXPECT_THAT(noting.notes, Contains("checkpoint 4"));
  EXPECT_EQ(noting.notes.back(), "checkpoint 6");
  for (const int64_t step : {2, 4}) {
    Noting stopping;
    stopping.at_step = [&](int64_t done) {
      if (done == step) raise(SIGTERM);
      return absl::OkStatus();
    };
    const absl::Status stopped = TrainIn(
        stops,
        {.sets = {"checkpoint.background=false"}, .observer = &stopping});
    ASSERT_EQ(stopped.code(), absl::StatusCode::kCancelled) << stopped;
    EXPECT_EQ(FilesOf(folder, step), FilesOf(stops, step)) << step;
    ASSERT_TRUE(RemoveTree(stops).ok());
  }
}

TEST(SavingTest, ASaveWaitsForTheOneBefore) {
  const std::string folder = NewFolder("queue");
  std::atomic<int> writers = 0;
  const auto hook = [&](absl::string_view operation) {
    if (absl::StartsWith(operation, "create") &&
        absl::EndsWith(operation, kManifestFile)) {
      EXPECT_EQ(++writers, 1);
      absl::SleepFor(absl::Milliseconds(50));
      --writers;
    }
  };
  Noting noting;
  ASSERT_EQ(TrainIn(folder, {.sets = {"checkpoint.every_steps=1"},
                             .write_point = hook,
                             .observer = &noting}),
            absl::OkStatus());
  EXPECT_THAT(CheckpointsIn(folder), testing::SizeIs(6));
  for (int step = 1; step <= 6; ++step) {
    EXPECT_THAT(noting.notes, Contains(absl::StrCat("checkpoint ", step)));
  }
}

TEST(SavingTest, TheEndOfARunWaitsForASave) {
  const std::string folder = NewFolder("end");
  Noting noting;
  const auto slow = [](absl::string_view operation) {
    if (absl::StartsWith(operation, "rename")) absl::SleepFor(kSlow);
  };
  // Step 5 is saved in the background, step 6 is the last.
  ASSERT_EQ(TrainIn(folder, {.sets = {"checkpoint.every_steps=5"},
                             .write_point = slow,
                             .observer = &noting}),
            absl::OkStatus());
  EXPECT_THAT(CheckpointsIn(folder),
              testing::ElementsAre("step_00000005", "step_00000006"));
  EXPECT_GT(noting.IndexOf("checkpoint 5"), noting.IndexOf("step 6"));
}

TEST(SavingTest, ASignalDuringASaveFinishesItAndSavesTheLastStep) {
  const std::string folder = NewFolder("signal");
  const auto hook = [](absl::string_view operation) {
    if (!absl::StartsWith(operation, "rename") || !IsOf(2, operation)) return;
    raise(SIGTERM);
    absl::SleepFor(kSlow);
  };
  Noting noting;
  const absl::Status status =
      TrainIn(folder, {.sets = {"training.steps=1000000"},
                       .write_point = hook,
                       .observer = &noting});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_THAT(noting.notes, Contains("checkpoint 2"));
  // The last event is the checkpoint of the last step.
  const auto latest = LatestGood(folder + "/checkpoints");
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(noting.notes.back(),
            absl::StrCat("checkpoint ", latest->checkpoint->step()));
  EXPECT_THAT(
      noting.notes,
      Not(Contains(absl::StrCat("step ", latest->checkpoint->step() + 1))));
  EXPECT_THAT(CheckpointsIn(folder), Each(StartsWith("step_")));
}

TEST(SavingTest, AStepThatFailsFinishesTheSaveInFlight) {
  const std::string folder = NewFolder("failed_step");
  Session* session = nullptr;
  Noting noting;
  noting.at_step = [&](int64_t step) {
    if (step == 3) SpoilAWeight(*session->state().parameters);
    return absl::OkStatus();
  };
  const auto slow = [](absl::string_view operation) {
    if (absl::StartsWith(operation, "rename")) absl::SleepFor(kSlow);
  };
  const absl::Status status = TrainIn(
      folder, {.write_point = slow, .observer = &noting, .session = &session});
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("step 4 gave a"));
  EXPECT_THAT(noting.notes, Contains("checkpoint 2"));
  EXPECT_THAT(CheckpointsIn(folder), testing::ElementsAre("step_00000002"));
}

TEST(SavingTest, AnOutputThatFailsFinishesTheSaveInFlightAndSavesItsOwnStep) {
  const std::string folder = NewFolder("failed_output");
  Noting noting;
  noting.at_step = [&](int64_t step) {
    return step == 3 ? absl::FailedPreconditionError("disk full")
                     : absl::OkStatus();
  };
  const auto slow = [](absl::string_view operation) {
    if (absl::StartsWith(operation, "rename")) absl::SleepFor(kSlow);
  };
  const absl::Status status =
      TrainIn(folder, {.write_point = slow, .observer = &noting});
  EXPECT_THAT(std::string(status.message()),
              StartsWith("disk full. Step 3 is saved in "));
  EXPECT_THAT(CheckpointsIn(folder),
              testing::ElementsAre("step_00000002", "step_00000003"));
}

TEST(SavingTest, ASaveThatFailsEndsTheRunAndLeavesTheEarlierCheckpoint) {
  const std::string folder = NewFolder("failed_save");
  const std::string temporary =
      absl::StrCat(folder, "/checkpoints/.tmp-", CheckpointName(4));
  const auto hook = [&](absl::string_view operation) {
    if (operation == absl::StrCat("create ", temporary, "/", kStateFile)) {
      EXPECT_TRUE(RemoveTree(temporary).ok());
    }
  };
  const absl::Status status = TrainIn(folder, {.write_point = hook});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot create " + temporary + "/state.json"));
  EXPECT_THAT(CheckpointsIn(folder), testing::ElementsAre("step_00000002"));
  // It resumes.
  EXPECT_EQ(TrainIn(folder, {}), absl::OkStatus());
  EXPECT_THAT(CheckpointsIn(folder), Contains("step_00000006"));
}

TEST(SavingTest, AFolderThatIsRemovedDuringASaveIsRescued) {
  const std::string folder = NewFolder("removed");
  const auto hook = [&](absl::string_view operation) {
    if (operation == absl::StrCat("create ", folder, "/checkpoints/.tmp-",
                                  CheckpointName(2), "/", kStateFile)) {
      EXPECT_TRUE(RemoveTree(folder).ok());
    }
  };
  const absl::Status status = TrainIn(folder, {.write_point = hook});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("was removed, moved or replaced"),
                    HasSubstr("is saved in " + folder + ".rescued-")));
  EXPECT_FALSE(FileExists(folder));
  const auto rescued = Glob(folder + ".rescued-*").value();
  ASSERT_THAT(rescued, testing::SizeIs(1));
  EXPECT_TRUE(LatestGood(rescued[0] + "/checkpoints").ok());
}

// Trains in a child that is killed before the `n`-th operation on the
// checkpoint of step 4 other than a write, which checkpoint_crash_test.cc
// covers. Returns whether it finished first.
bool TrainInChild(const std::string& folder, int n) {
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> count = 0;
    const auto hook = [&](absl::string_view operation) {
      if (absl::StartsWith(operation, "write") || !IsOf(4, operation)) return;
      if (++count == n) raise(SIGKILL);
    };
    const absl::Status status = TrainIn(folder, {.write_point = hook});
    _exit(status.ok() ? 0 : 1);
  }
  int result = 0;
  EXPECT_EQ(waitpid(child, &result, 0), child);
  if (WIFEXITED(result)) {
    EXPECT_EQ(WEXITSTATUS(result), 0);
    return true;
  }
  EXPECT_EQ(WTERMSIG(result), SIGKILL);
  return false;
}

TEST(SavingTest, AKilledRunResumesWhereverTheSaveWas) {
  const std::string straight = NewFolder("straight");
  ASSERT_EQ(TrainIn(straight, {}), absl::OkStatus());
  int killed = 0;
  for (int n = 1;; ++n) {
    SCOPED_TRACE(absl::StrCat("killed at operation ", n));
    const std::string folder = NewFolder("killed");
    const bool finished = TrainInChild(folder, n);
    const auto latest = LatestGood(folder + "/checkpoints");
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_THAT(latest->warnings, IsEmpty());
    EXPECT_EQ(TrainIn(folder, {}), absl::OkStatus());
    EXPECT_THAT(CheckpointsIn(folder), Each(StartsWith("step_")));
    EXPECT_EQ(FilesOf(folder, 6), FilesOf(straight, 6));
    if (finished) break;
    ++killed;
  }
  // Five files, each created and synced, the folder and its rename.
  EXPECT_GE(killed, 12);
}

}  // namespace
}  // namespace tessera
