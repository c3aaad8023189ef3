// Checkpoints of several files, written by two processes together.

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kTensorBytes = 64 << 10;

// Two tensors for each of two files, and the moments of one.
std::vector<TensorFile> Files() {
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors.push_back({name, StoredDtype::kU8, {kTensorBytes}});
  }
  std::vector<TensorFile> files =
      DivideIntoFiles(kModelFile, tensors, 2 * kTensorBytes).value();
  files.push_back(
      DivideIntoFiles(kOptimizerFile, {{"m", StoredDtype::kU8, {1}}})->front());
  return files;
}

// The weights of a step.
std::string WeightsOf(const TensorSpec& spec, int64_t step) {
  return std::string(SizeBytes(spec).value(),
                     static_cast<char>(spec.name[0] + step));
}

absl::Status Write(const TensorFile& file, int64_t step,
                   CheckpointWriter* writer) {
  ASSIGN_OR_RETURN(SafetensorsWriter * to,
                   writer->AddTensorFile(file.name, file.tensors));
  for (const TensorSpec& tensor : file.tensors) {
    RETURN_IF_ERROR(to->Write(WeightsOf(tensor, step)));
  }
  return to->Finish();
}

// Writes the part of rank 3 or 5 of the checkpoint of a step. Rank 3 leads.
absl::Status Save(const std::string& directory, int64_t step, int index,
                  const WritePointHook& hook, std::function<bool()> gone) {
  ASSIGN_OR_RETURN(
      auto writer,
      CheckpointWriter::Begin(
          directory, step, hook,
          {.ranks = {3, 5}, .index = index, .gone = std::move(gone)}));
  const std::vector<TensorFile> files = Files();
  absl::Status written;
  for (size_t f = 0; f < files.size() && written.ok(); ++f) {
    // The leader writes the last two.
    if ((f == 0) == (index == 1)) {
      written = Write(files[f], step, writer.get());
    }
  }
  if (index == 1) {
    ASSIGN_OR_RETURN(const std::string folder, writer->Finish(written));
    // A rank that ended before would end the leader, too.
    return FileExists(folder)
               ? absl::OkStatus()
               : absl::InternalError("the leader has not committed");
  }
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(writer->AddText(
      IndexName(kModelFile), IndexOf(absl::MakeSpan(files).subspan(0, 2))));
  return writer->Commit({{"step", step}}, "").status();
}

// What happens to a rank before its `n`-th operation; 0: nothing.
struct Fate {
  int n = 0;
  std::function<void()> happens = nullptr;
};

// Saves a step in two processes; returns the status of each wait(), and the
// standard errors of both.
struct Ends {
  std::array<int, 2> status;
  std::string output;

  bool ok(int index) const { return status[index] == 0; }
  bool killed(int index) const { return WIFSIGNALED(status[index]); }
};

Ends SaveInTwoProcesses(const std::string& directory, int64_t step,
                        const std::array<Fate, 2>& fates) {
  auto* const gone = static_cast<std::atomic<bool>*>(
      mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  gone->store(false);
  const std::string output = directory + ".output";
  std::ofstream(output, std::ios::trunc);
  std::array<pid_t, 2> children;
  for (int index = 0; index < 2; ++index) {
    children[index] = fork();
    if (children[index] != 0) continue;
    EXPECT_NE(freopen(output.c_str(), "a", stderr), nullptr);
    int count = 0;
    const Fate& fate = fates[index];
    const absl::Status status = Save(
        directory, step, index,
        [&](absl::string_view) {
          if (++count == fate.n) fate.happens();
        },
        [gone] { return gone->load(); });
    if (!status.ok()) {
      fprintf(stderr, "%d: %s\n", index, status.ToString().c_str());
    }
    fflush(stderr);
    _exit(status.ok() ? 0 : 1);
  }
  Ends ends;
  for (int ended = 0; ended < 2; ++ended) {
    int status = 0;
    const pid_t child = waitpid(-1, &status, 0);
    ends.status[child == children[1] ? 1 : 0] = status;
    if (status != 0) gone->store(true);
  }
  munmap(gone, sizeof(std::atomic<bool>));
  ends.output = ReadFile(output).value();
  return ends;
}

class SharedCheckpointTest : public testing::Test {
 protected:
  SharedCheckpointTest()
      : directory_(absl::StrCat(
            testing::TempDir(), "/shared_checkpoint_test.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    Clear();
  }

  void Clear() {
    EXPECT_TRUE(RemoveTree(directory_).ok());
    EXPECT_TRUE(MakeDirectories(directory_).ok());
  }
  // Saves a step; returns its folder.
  std::string SaveStep(int64_t step) {
    const Ends ends = SaveInTwoProcesses(directory_, step, {});
    EXPECT_TRUE(ends.ok(0) && ends.ok(1)) << ends.output;
    return absl::StrCat(directory_, "/", CheckpointName(step));
  }
  std::vector<std::string> Names() { return ListDirectory(directory_).value(); }

  // The step of the newest checkpoint, whose tensors are those of that step.
  int64_t VerifiedStep() {
    const auto latest = LatestGood(directory_);
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok()) return -1;
    EXPECT_THAT(latest->warnings, IsEmpty());
    const Checkpoint& checkpoint = *latest->checkpoint;
    for (const TensorFile& file : Files()) {
      const StoredTensors& stored =
          *checkpoint
               .Tensors(file.name == kOptimizerFile ? kOptimizerFile
                                                    : kModelFile)
               .value();
      for (const TensorSpec& tensor : file.tensors) {
        EXPECT_TRUE(stored.Find(tensor.name)->bytes ==
                    WeightsOf(tensor, checkpoint.step()))
            << tensor.name;
      }
    }
    return checkpoint.step();
  }

  static void Edit(const std::string& path,
                   const std::function<void(std::string*)>& edit) {
    std::string bytes = ReadFile(path).value();
    edit(&bytes);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string directory_;
};

TEST_F(SharedCheckpointTest, HoldsTheFilesOfBothRanksAndNothingElse) {
  const std::string folder = SaveStep(1);
  EXPECT_THAT(Names(), UnorderedElementsAre("step_00000001"));
  EXPECT_THAT(ListDirectory(folder).value(),
              UnorderedElementsAre("model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json",
                                   "optimizer.safetensors", "state.json",
                                   "config.pbtxt", "manifest.json"));
  EXPECT_EQ(VerifiedStep(), 1);
}

TEST_F(SharedCheckpointTest, AKilledRankLeavesAGoodCheckpoint) {
  for (const int victim : {0, 1}) {
    int old_survived = 0, new_survived = 0;
    bool killed = true;
    for (int n = 1; killed; ++n) {
      SCOPED_TRACE(absl::StrCat("rank ", victim, " killed at operation ", n));
      Clear();
      SaveStep(1);
      std::array<Fate, 2> fates;
      fates[victim] = {n, [] { raise(SIGKILL); }};
      const Ends ends = SaveInTwoProcesses(directory_, 2, fates);
      killed = ends.killed(victim);
      const int64_t step = VerifiedStep();
      ++(step == 1 ? old_survived : new_survived);
      if (victim == 1 && step == 1) {
        // The leader discards what it cannot complete, and says why.
        EXPECT_FALSE(ends.ok(0));
        EXPECT_THAT(Names(), UnorderedElementsAre("step_00000001"));
        EXPECT_THAT(ends.output, HasSubstr("rank 5 has not finished"));
      }
      ASSERT_TRUE(RemoveStaleTemporaries(directory_).ok());
      if (step == 1) SaveStep(2);
      EXPECT_EQ(VerifiedStep(), 2);
    }
    EXPECT_GE(old_survived, victim == 0 ? 20 : 5);
    EXPECT_GE(new_survived, 1);
  }
}

TEST_F(SharedCheckpointTest, AFullDiskOfOneRankIsNamedByBoth) {
  SaveStep(1);
  // Room for the part that says so, but not for a tensor.
  const auto fill = [] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {kTensorBytes / 2, kTensorBytes / 2};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Ends ends = SaveInTwoProcesses(directory_, 2,
                                       {Fate{}, Fate{.n = 1, .happens = fill}});
  EXPECT_FALSE(ends.ok(0) || ends.ok(1) || ends.killed(0) || ends.killed(1));
  const std::string error = absl::StrCat(
      "cannot write ", directory_,
      "/.tmp-shared-step_00000002/model-00001-of-00002.safetensors");
  EXPECT_THAT(ends.output,
              AllOf(HasSubstr("rank 5: " + error), HasSubstr(": " + error)));
  EXPECT_THAT(Names(), UnorderedElementsAre("step_00000001"));
  EXPECT_EQ(VerifiedStep(), 1);
}

TEST_F(SharedCheckpointTest, AFailureOfTheLeaderEndsBoth) {
  SaveStep(1);
  const auto fill = [] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {10, 10};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Ends ends = SaveInTwoProcesses(directory_, 2,
                                       {Fate{.n = 5, .happens = fill}, Fate{}});
  EXPECT_FALSE(ends.ok(0) || ends.killed(0) || ends.killed(1));
  EXPECT_THAT(Names(), UnorderedElementsAre("step_00000001"));
}

// Such as the one that saves the weights when the run must end.
TEST_F(SharedCheckpointTest, NoRankTakesPartInASaveOfTheLeaderAlone) {
  const auto alone =
      CheckpointWriter::Begin(directory_, 2, nullptr, {.ranks = {3}});
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto late = CheckpointWriter::Begin(
      directory_, 2, nullptr,
      {.ranks = {3, 5}, .index = 1, .gone = [] { return true; }});
  EXPECT_EQ(late.status().code(), absl::StatusCode::kUnavailable)
      << late.status();
}

TEST_F(SharedCheckpointTest, DamageToAnyFileIsFoundAndNamed) {
  const std::string folder = SaveStep(1);
  for (const TensorFile& file : Files()) {
    const std::string path = absl::StrCat(folder, "/", file.name);
    const auto flip = [](std::string* bytes) { bytes->back() ^= 1; };
    Edit(path, flip);
    const absl::Status status = Checkpoint::Open(folder).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(absl::StrCat(path, ": tensor '", file.tensors.back().name,
                               "' is damaged")));
    // One of the ranks that share the verification finds it.
    int found = 0;
    for (const int index : {0, 1}) {
      found += !Checkpoint::Open(folder, Checkpoint::Part::kEverything,
                                 {.index = index, .count = 2})
                    .ok();
    }
    EXPECT_EQ(found, 1) << path;
    Edit(path, flip);

    ASSERT_EQ(rename(path.c_str(), (path + ".aside").c_str()), 0);
    const absl::Status missing = Checkpoint::Open(folder).status();
    EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss) << missing;
    EXPECT_THAT(std::string(missing.message()), HasSubstr(path));
    ASSERT_EQ(rename((path + ".aside").c_str(), path.c_str()), 0);
  }
  EXPECT_EQ(VerifiedStep(), 1);
}

// A model folder has no manifest, so only the index can show what is missing.
TEST_F(SharedCheckpointTest, AModelFolderMustMatchItsIndex) {
  const std::string folder = SaveStep(1);
  const std::string index = folder + "/model.safetensors.index.json";
  ASSERT_TRUE(RemoveTree(folder + "/manifest.json").ok());
  const auto open = [&] { return Checkpoint::OpenModelFolder(folder); };
  {
    const auto model = open();
    ASSERT_TRUE(model.ok()) << model.status();
    const StoredTensors& tensors = *(*model)->Tensors(kModelFile).value();
    EXPECT_EQ(tensors.num_tensors(), 4);
    EXPECT_EQ(tensors.path(), index);
    EXPECT_NE(tensors.Find("d"), nullptr);
  }
  const std::string good = ReadFile(index).value();
  struct Bad {
    std::string from, to, message;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"\"a\": \"model-00001", "\"a\": \"model-00002",
            "model-00002-of-00002.safetensors has no tensor 'a'"},
           {"    \"a\": \"model-00001-of-00002.safetensors\",\n", "",
            "does not say that tensor 'a' is in model-00001"},
           {"model-00001", "../model-00001", "not a plain file name"},
           {"model-00001-of-00002.safetensors", "config.pbtxt",
            "not the name of a .safetensors file"},
           {"model-00001", "model-00009", "model-00009-of-00002.safetensors"},
           {"weight_map", "weights", "not an index"}}) {
    Edit(index, [&](std::string* text) {
      *text = good;
      const size_t at = text->find(bad.from);
      ASSERT_NE(at, std::string::npos) << bad.from;
      text->replace(at, bad.from.size(), bad.to);
    });
    const absl::Status status = open().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace tessera
