#include "framework/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/exit_code.h"
#include "framework/base/file.h"
#include "framework/checkpoint/checkpoint_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/checkpoint/add_tensors.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kConfig[] = "training { steps: 4 }\n";

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest()
      : directory_(absl::StrCat(
            testing::TempDir(), "/checkpoint_test.",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_TRUE(RemoveTree(directory_).ok());
  }

  absl::Status Fill(CheckpointWriter* writer, int64_t step) {
    const std::vector<float> weights = {1.5f * step, -2.0f, 3.0f};
    const std::vector<int64_t> ids = {step};
    absl::Status status =
        AddTensors(writer, kModelFile,
                   {{{"w", StoredDtype::kF32, {3}}, weights.data()},
                    {{"empty", StoredDtype::kBF16, {0}}, nullptr},
                    {{"ids", StoredDtype::kI64, {1}}, ids.data()}});
    status.Update(
        AddTensors(writer, kOptimizerFile,
                   {{{"m", StoredDtype::kF32, {3}}, weights.data()}}));
    return status;
  }

  // Returns the checkpoint's folder.
  std::string Save(int64_t step) {
    auto writer = CheckpointWriter::Begin(directory_, step);
    EXPECT_TRUE(writer.ok()) << writer.status();
    const absl::Status filled = Fill(writer->get(), step);
    EXPECT_TRUE(filled.ok()) << filled;
    const auto folder = (*writer)->Commit({{"step", step}}, kConfig);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.value_or("");
  }

  // Changes a byte of the file, counted from its end.
  static void FlipFromEnd(const std::string& path, int64_t from_end) {
    std::string bytes = ReadFile(path).value();
    bytes[bytes.size() - from_end] ^= 0x10;
    Overwrite(path, bytes);
  }

  static void Overwrite(const std::string& path, absl::string_view bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), bytes.size());
    ASSERT_TRUE(file.good());
  }

  // Edits a manifest so that it looks like one from an older program, without a
  // checksum of itself.
  static void EditManifest(const std::string& folder,
                           const std::function<void(nlohmann::json*)>& edit) {
    const std::string path = absl::StrCat(folder, "/", kManifestFile);
    auto manifest = nlohmann::json::parse(ReadFile(path).value());
    manifest.erase("xxh3_64");
    edit(&manifest);
    Overwrite(path, manifest.dump());
  }

  // Moves `path` aside and puts a symbolic link to itself in its place, which
  // cannot be opened.
  static void Hide(const std::string& path) {
    ASSERT_EQ(rename(path.c_str(), (path + ".aside").c_str()), 0);
    ASSERT_EQ(symlink(path.c_str(), path.c_str()), 0);
  }
  static void Unhide(const std::string& path) {
    ASSERT_EQ(unlink(path.c_str()), 0);
    ASSERT_EQ(rename((path + ".aside").c_str(), path.c_str()), 0);
  }

  std::vector<std::string> Names() {
    return ListDirectory(directory_).value_or(std::vector<std::string>());
  }

  const std::string directory_;
};

TEST_F(CheckpointTest, IsRestored) {
  const std::string folder = Save(20);
  EXPECT_EQ(folder, directory_ + "/step_00000020");
  EXPECT_THAT(Names(), ElementsAre("step_00000020"));
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->step(), 20);
  EXPECT_EQ((*checkpoint)->state(), nlohmann::json({{"step", 20}}));
  EXPECT_EQ((*checkpoint)->config_text(), kConfig);
  const auto model = (*checkpoint)->Tensors(kModelFile);
  ASSERT_TRUE(model.ok()) << model.status();
  const StoredTensor* w = (*model)->Find("w");
  ASSERT_NE(w, nullptr);
  const std::vector<float> expected = {30.0f, -2.0f, 3.0f};
  EXPECT_EQ(w->bytes,
            absl::string_view(reinterpret_cast<const char*>(expected.data()),
                              sizeof(float) * expected.size()));
  EXPECT_EQ((*checkpoint)->Tensors("other.safetensors").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, ADamagedTensorIsNamed) {
  const std::string folder = Save(1);
  // "ids" is wider than "w" and comes first.
  FlipFromEnd(absl::StrCat(folder, "/", kModelFile), 1);
  const absl::Status status = Checkpoint::Open(folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("tensor 'w'")));
  FlipFromEnd(absl::StrCat(folder, "/", kModelFile), 1);
  FlipFromEnd(absl::StrCat(folder, "/", kModelFile), 13);
  EXPECT_THAT(Checkpoint::Open(folder).status().message(),
              HasSubstr("tensor 'ids'"));
}

TEST_F(CheckpointTest, EveryChangedByteIsDetected) {
  const std::string folder = Save(1);
  for (absl::string_view name :
       {kModelFile, kOptimizerFile, kStateFile, kConfigFile, kManifestFile}) {
    const std::string path = absl::StrCat(folder, "/", name);
    const std::string good = ReadFile(path).value();
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] ^= 0x01;
      Overwrite(path, bad);
      const absl::Status status = Checkpoint::Open(folder).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << path << at;
      EXPECT_THAT(status.message(), HasSubstr(path));
    }
    Overwrite(path, good);
  }
  EXPECT_TRUE(Checkpoint::Open(folder).ok());
}

TEST_F(CheckpointTest, EveryTruncatedFileIsRefused) {
  const std::string folder = Save(1);
  for (absl::string_view name :
       {kModelFile, kOptimizerFile, kStateFile, kConfigFile, kManifestFile}) {
    const std::string path = absl::StrCat(folder, "/", name);
    const std::string good = ReadFile(path).value();
    // Only the newline after the manifest's last brace may be missing.
    const size_t end = good.size() - (name == kManifestFile ? 1 : 0);
    for (size_t size = 0; size < end; ++size) {
      Overwrite(path, good.substr(0, size));
      EXPECT_FALSE(Checkpoint::Open(folder).ok()) << path << size;
    }
    ASSERT_TRUE(RemoveTree(path).ok());
    const absl::Status status = Checkpoint::Open(folder).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(path));
    Overwrite(path, good);
  }
}

TEST_F(CheckpointTest, ErrorsNameAChangedManifest) {
  const std::string folder = Save(1);
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  auto manifest = nlohmann::json::parse(ReadFile(path).value());
  std::string checksum = manifest["files"]["model.safetensors"]["tensors"]["w"];
  checksum[0] = checksum[0] == '0' ? '1' : '0';
  manifest["files"]["model.safetensors"]["tensors"]["w"] = checksum;
  Overwrite(path, manifest.dump());
  const absl::Status status = Checkpoint::Open(folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), path + " is damaged (its own checksum)");
}

TEST_F(CheckpointTest, AnOlderManifestHasNoChecksumOfItsOwn) {
  const std::string folder = Save(1);
  EditManifest(folder, [](nlohmann::json*) {});
  EXPECT_TRUE(Checkpoint::Open(folder).ok());
  // A manifest with a damaged name of the checksum is not an older one.
  EditManifest(folder, [](nlohmann::json* manifest) {
    (*manifest)["xxh3_65"] = "0000000000000000";
  });
  const absl::Status status = Checkpoint::Open(folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("manifest.json is damaged"));
}

TEST_F(CheckpointTest, AManifestCannotPointElsewhere) {
  const std::string folder = Save(1);
  EditManifest(folder, [](nlohmann::json* manifest) {
    nlohmann::json& files = (*manifest)["files"];
    files["../x.safetensors"] = files["state.json"];
  });
  EXPECT_THAT(Checkpoint::Open(folder).status().message(),
              HasSubstr("not a plain file name"));
}

TEST_F(CheckpointTest, AManifestOfAnotherStepThanItsFolderIsRefused) {
  const std::string folder = Save(20);
  const auto set_step = [](const std::string& in, uint64_t step) {
    EditManifest(in,
                 [&](nlohmann::json* manifest) { (*manifest)["step"] = step; });
  };
  for (const uint64_t step : {uint64_t{5}, ~uint64_t{0}, uint64_t{1} << 63,
                              (uint64_t{1} << 63) + 20}) {
    set_step(folder, step);
    for (const std::string& name : {folder, folder + "//"}) {
      const absl::Status status = Checkpoint::Open(name).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(kManifestFile),
                        HasSubstr(absl::StrCat("step is ", step)),
                        HasSubstr("folder is step_00000020")));
    }
  }
  // Another name does not contain the step, but no step is that large.
  const std::string renamed = directory_ + "/best";
  ASSERT_EQ(rename(folder.c_str(), renamed.c_str()), 0);
  EXPECT_EQ(Checkpoint::Open(renamed).status().code(),
            absl::StatusCode::kDataLoss);
  set_step(renamed, 20);
  EXPECT_EQ(Checkpoint::Open(renamed).value()->step(), 20);
}

TEST_F(CheckpointTest, AnotherFormatVersionIsRejectedByNumberAndNotReplaced) {
  Save(1);
  const std::string folder = Save(2);
  EditManifest(folder,
               [](nlohmann::json* manifest) { (*manifest)["version"] = 2; });
  for (const absl::Status& status :
       {Checkpoint::Open(folder).status(), LatestGood(directory_).status(),
        CheckpointWriter::Begin(directory_, 2).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("format version 2"));
  }
}

TEST_F(CheckpointTest, AGoodOneIsNotOverwritten) {
  Save(3);
  EXPECT_EQ(CheckpointWriter::Begin(directory_, 3).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(CheckpointTest, ADamagedOneIsReplaced) {
  const std::string folder = Save(3);
  FlipFromEnd(absl::StrCat(folder, "/", kModelFile), 1);
  Save(3);
  EXPECT_TRUE(Checkpoint::Open(folder).ok());
  EXPECT_THAT(Names(), ElementsAre("step_00000003"));
}

TEST_F(CheckpointTest, AnAbandonedWriterLeavesNothing) {
  {
    auto writer = CheckpointWriter::Begin(directory_, 1);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(Fill(writer->get(), 1).ok());
    EXPECT_THAT(Names(), ElementsAre(".tmp-step_00000001"));
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointTest, AFailedWriteIsReportedAndLeavesNothing) {
  Save(1);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // Above this size a write fails instead of raising a signal.
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 100, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status status;
  {
    auto writer = CheckpointWriter::Begin(directory_, 2);
    ASSERT_TRUE(writer.ok()) << writer.status();
    status = Fill(writer->get(), 2);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("cannot write"));
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
  EXPECT_THAT(Names(), ElementsAre("step_00000001"));
}

TEST_F(CheckpointTest, AnUnfinishedTensorFileIsNotCommitted) {
  auto writer = CheckpointWriter::Begin(directory_, 1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto file =
      (*writer)->AddTensorFile(kModelFile, {{"w", StoredDtype::kU8, {1}}});
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Write("x").ok());
  const auto folder = (*writer)->Commit({}, "");
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(folder.status().message(),
              HasSubstr("model.safetensors is not finished"));
}

TEST_F(CheckpointTest, LatestGoodSkipsDamagedOnes) {
  EXPECT_EQ(LatestGood(directory_).status().code(),
            absl::StatusCode::kNotFound);
  const std::string first = Save(9);
  const std::string second = Save(10);
  ASSERT_TRUE(MakeDirectories(directory_ + "/step_11").ok());  // not ours
  FlipFromEnd(absl::StrCat(second, "/", kOptimizerFile), 1);
  const auto latest = LatestGood(directory_);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->checkpoint->step(), 9);
  EXPECT_THAT(latest->warnings,
              ElementsAre(AllOf(HasSubstr(second), HasSubstr("tensor 'm'"))));
  FlipFromEnd(absl::StrCat(first, "/", kStateFile), 1);
  const absl::Status none = LatestGood(directory_).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(none.message(), AllOf(HasSubstr(first), HasSubstr(second)));
}

// The checkpoint is good, but a possibly temporary error prevents reading it.
TEST_F(CheckpointTest, OnlyDamagedOnesAreSkippedReplacedOrNotCounted) {
  Save(9);
  const std::string second = Save(10);
  const auto expect_reason = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(second),
                      HasSubstr("Too many levels of symbolic links")));
  };
  for (const std::string& hidden :
       {second, second + "/manifest.json", second + "/model.safetensors",
        second + "/optimizer.safetensors", second + "/state.json"}) {
    SCOPED_TRACE(hidden);
    Hide(hidden);
    expect_reason(Checkpoint::Open(second).status());
    expect_reason(LatestGood(directory_).status());
    EXPECT_THAT(LatestGood(directory_).status().message(),
                HasSubstr("make it readable, or move " + second + " away"));
    expect_reason(PruneCheckpoints(directory_, {.keep_last = 1}).status());
    expect_reason(CheckpointWriter::Begin(directory_, 10).status());
    Unhide(hidden);
  }
  EXPECT_EQ(LatestGood(directory_)->checkpoint->step(), 10);
  // A dangling link is a missing file, which is damage.
  const std::string state = second + "/state.json";
  ASSERT_TRUE(RemoveTree(state).ok());
  ASSERT_EQ(symlink("/nowhere", state.c_str()), 0);
  EXPECT_EQ(LatestGood(directory_)->checkpoint->step(), 9);
  // The error includes the reason for the checkpoint skipped before it.
  Hide(directory_ + "/step_00000009");
  EXPECT_THAT(LatestGood(directory_).status().message(),
              AllOf(HasSubstr("skipping checkpoint " + second + ": "),
                    HasSubstr("step_00000009 away")));
  Unhide(directory_ + "/step_00000009");
}

TEST_F(CheckpointTest, TooManyOpenFilesAreNotDamage) {
  const std::string folder = Save(1);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) _exit(2);
    for (const absl::Status& status :
         {Checkpoint::Open(folder).status(), LatestGood(directory_).status()}) {
      const bool expected = !IsDamagedOrAbsent(status) &&
                            absl::StrContains(status.message(), "open files") &&
                            ExitCode(status) == 2;
      if (!expected) _exit(1);
    }
    _exit(0);
  }
  int result = 0;
  EXPECT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
}

// A copy of checkpoints in a folder that everybody may read, including nobody,
// which root becomes.
class PermissionTest : public CheckpointTest {
 protected:
  // Copies what is in directory_.
  void SetUpCopy() {
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    Allow(root_, 0755);
    std::filesystem::copy(directory_, copy(),
                          std::filesystem::copy_options::recursive);
    Allow(copy(), 0777);
  }
  void TearDown() override {
    using std::filesystem::perms;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(root_)) {
      if (entry.is_directory()) {
        std::filesystem::permissions(entry.path(), perms::owner_all);
      }
    }
    EXPECT_TRUE(RemoveTree(root_).ok());
  }

  std::string copy() const { return root_ + "/checkpoints"; }

  static void Allow(const std::string& path, mode_t mode) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0) << path;
  }

  // Expects `test` to hold in a process that permissions stop.
  static void ExpectAsNobody(const std::function<bool()>& test) {
    const pid_t child = fork();
    if (child == 0) {
      constexpr int kNobody = 65534;
      if (getuid() == 0 && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) {
        _exit(3);
      }
      _exit(test() ? 0 : 1);
    }
    int result = 0;
    EXPECT_EQ(waitpid(child, &result, 0), child);
    EXPECT_EQ(result, 0);
  }

  std::string root_ = "/tmp/checkpoint_test.XXXXXX";
};

TEST_F(PermissionTest, AMissingOneIsNotDamage) {
  Save(1);
  Save(2);
  SetUpCopy();
  Allow(copy() + "/step_00000002", 0);
  ExpectAsNobody([&] {
    const absl::Status status = LatestGood(copy()).status();
    return absl::IsPermissionDenied(status) &&
           absl::StrContains(status.message(), "step_00000002");
  });
}

TEST_F(PermissionTest, WhatCannotBeDeletedIsAWarning) {
  for (const int64_t step : {1, 2, 3}) Save(step);
  SetUpCopy();
  Allow(copy() + "/step_00000001", 0777);
  Allow(copy() + "/step_00000002", 0555);
  const std::string left = copy() + "/.tmp-deleted-step_00000002";
  ExpectAsNobody([&] {
    const auto pruned = PruneCheckpoints(copy(), {.keep_last = 1});
    return pruned.ok() && pruned->warnings.size() == 1 &&
           absl::StrContains(pruned->warnings[0], left) &&
           pruned->deleted ==
               std::vector<std::string>{copy() + "/step_00000001"};
  });
  ExpectAsNobody([&] {
    const auto removed = RemoveStaleTemporaries(copy());
    return removed.ok() && removed->warnings.size() == 1 &&
           absl::StrContains(removed->warnings[0], left);
  });
  EXPECT_TRUE(FileExists(left));
}

TEST_F(PermissionTest, AFolderMayBeALinkIntoOneThatCannotBeRead) {
  Save(1);
  SetUpCopy();
  const std::string link = copy() + "/link", foreign = root_ + "/foreign";
  ASSERT_TRUE(MakeDirectories(foreign + "/own").ok());
  ASSERT_EQ(symlink((foreign + "/own").c_str(), link.c_str()), 0);
  Allow(foreign + "/own", 0777);
  Allow(foreign, 0311);
  ExpectAsNobody([&] { return CheckpointWriter::Begin(link, 2).ok(); });
}

TEST_F(CheckpointTest, TheModelNeedsNoOtherFile) {
  auto writer = CheckpointWriter::Begin(directory_, 7).value();
  ASSERT_TRUE(Fill(writer.get(), 7).ok());
  ASSERT_TRUE(writer->AddText(kTokenizerFile, R"({"kind": "bytes"})").ok());
  const std::string folder = writer->Commit({{"step", 7}}, kConfig).value();
  Hide(absl::StrCat(folder, "/", kOptimizerFile));
  Hide(absl::StrCat(folder, "/", kStateFile));
  EXPECT_FALSE(Checkpoint::Open(folder).ok());

  const auto expect_model = [](const Checkpoint& model) {
    EXPECT_EQ(model.config_text(), kConfig);
    EXPECT_EQ(model.tokenizer(), nlohmann::json({{"kind", "bytes"}}));
    EXPECT_NE(model.Tensors(kModelFile).value()->Find("w"), nullptr);
    EXPECT_FALSE(model.Tensors(kOptimizerFile).ok());
  };
  const auto model = LatestGood(directory_, Checkpoint::Part::kModel);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->checkpoint->step(), 7);
  expect_model(*model->checkpoint);

  ASSERT_TRUE(RemoveTree(absl::StrCat(folder, "/", kManifestFile)).ok());
  const auto alone = Checkpoint::OpenModelFolder(folder);
  ASSERT_TRUE(alone.ok()) << alone.status();
  expect_model(**alone);
  ASSERT_TRUE(RemoveTree(absl::StrCat(folder, "/", kConfigFile)).ok());
  const absl::Status refused = Checkpoint::OpenModelFolder(folder).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused.message(), HasSubstr(folder + " has no config.pbtxt"));
}

TEST_F(CheckpointTest,
       TheModelIsVerifiedAndOlderOnesHaveTheTokenizerInTheState) {
  auto writer = CheckpointWriter::Begin(directory_, 7).value();
  ASSERT_TRUE(Fill(writer.get(), 7).ok());
  const nlohmann::json tokenizer = {{"kind", "bytes"}};
  const std::string folder =
      writer->Commit({{"tokenizer", tokenizer}}, kConfig).value();
  const auto model = Checkpoint::Open(folder, Checkpoint::Part::kModel);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer(), tokenizer);
  EXPECT_EQ((*model)->tokenizer_source(), folder + "/state.json: tokenizer");
  FlipFromEnd(absl::StrCat(folder, "/", kModelFile), 1);
  EXPECT_THAT(
      Checkpoint::Open(folder, Checkpoint::Part::kModel).status().message(),
      HasSubstr("tensor 'w'"));
}

TEST_F(CheckpointTest, AListedTokenizerMustBeThere) {
  auto writer = CheckpointWriter::Begin(directory_, 7).value();
  ASSERT_TRUE(Fill(writer.get(), 7).ok());
  ASSERT_TRUE(writer->AddText(kTokenizerFile, R"({"kind": "bytes"})").ok());
  const std::string folder = writer->Commit({{"step", 7}}, kConfig).value();
  ASSERT_TRUE(Checkpoint::Open(folder, Checkpoint::Part::kModel).ok());
  ASSERT_EQ(unlink(absl::StrCat(folder, "/", kTokenizerFile).c_str()), 0);
  EXPECT_THAT(
      Checkpoint::Open(folder, Checkpoint::Part::kModel).status().message(),
      HasSubstr(folder + "/tokenizer.json"));
}

TEST_F(CheckpointTest, PruneKeepsTheNewestAndTheMultiples) {
  for (int64_t step : {10, 15, 20, 25, 30}) Save(step);
  const auto pruned =
      PruneCheckpoints(directory_, {.keep_last = 2, .keep_every_steps = 20});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_THAT(pruned->deleted, ElementsAre(directory_ + "/step_00000015",
                                           directory_ + "/step_00000010"));
  EXPECT_THAT(pruned->warnings, IsEmpty());
  EXPECT_THAT(Names(),
              ElementsAre("step_00000020", "step_00000025", "step_00000030"));
}

TEST_F(CheckpointTest, PruneCountsFromTheNewestGoodOne) {
  for (int64_t step : {1, 2, 3}) Save(step);
  FlipFromEnd(absl::StrCat(directory_, "/step_00000003/", kModelFile), 1);
  const auto pruned = PruneCheckpoints(directory_, {.keep_last = 1});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_THAT(pruned->deleted, ElementsAre(directory_ + "/step_00000001"));
  EXPECT_THAT(pruned->warnings, ElementsAre(HasSubstr("step_00000003")));
  FlipFromEnd(absl::StrCat(directory_, "/step_00000002/", kModelFile), 1);
  EXPECT_EQ(PruneCheckpoints(directory_, {.keep_last = 1}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_THAT(Names(), ElementsAre("step_00000002", "step_00000003"));
}

TEST_F(CheckpointTest, PruneDoesNotCountWhatIsKnownToBeDamaged) {
  for (int64_t step : {1, 2, 3, 4}) Save(step);
  const auto pruned =
      PruneCheckpoints(directory_, {.keep_last = 2, .damaged = {3}});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_THAT(Names(),
              ElementsAre("step_00000002", "step_00000003", "step_00000004"));
}

TEST_F(CheckpointTest, PruneDoesNotReadACheckpointThatWasJustVerified) {
  Save(1);
  const std::string newest = Save(2);
  FlipFromEnd(newest + "/" + std::string(kModelFile), 1);
  const auto pruned =
      PruneCheckpoints(directory_, {.keep_last = 1, .verified = newest});
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_THAT(pruned->deleted, ElementsAre(directory_ + "/step_00000001"));
  EXPECT_THAT(pruned->warnings, IsEmpty());
}

TEST_F(CheckpointTest, ACheckpointThatIsNotWrittenWellGetsNoName) {
  Save(1);
  const std::string model =
      directory_ + "/.tmp-step_00000002/" + std::string(kModelFile);
  auto writer =
      CheckpointWriter::Begin(directory_, 2, [&](absl::string_view operation) {
        // The last operation before the folder is renamed.
        if (operation == "fsync " + directory_ + "/.tmp-step_00000002") {
          FlipFromEnd(model, 1);
        }
      });
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(Fill(writer->get(), 2).ok());
  const absl::Status status =
      (*writer)->Commit({{"step", 2}}, kConfig).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(model + ": tensor 'w' is damaged"));
  writer->reset();
  EXPECT_THAT(ListDirectory(directory_).value(), ElementsAre("step_00000001"));
}

// Large files are read by several threads.
TEST_F(CheckpointTest, TheFirstDamagedTensorOfALargeFileIsNamed) {
  const std::vector<float> values(int64_t{1} << 21, 1.5f);  // 8 MiB
  auto writer = CheckpointWriter::Begin(directory_, 1).value();
  std::vector<TensorView> tensors;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    tensors.push_back(
        {{name, StoredDtype::kF32, {int64_t{1} << 21}}, values.data()});
  }
  ASSERT_TRUE(AddTensors(writer.get(), kModelFile, tensors).ok());
  const std::string folder = writer->Commit({{"step", 1}}, kConfig).value();
  ASSERT_TRUE(Checkpoint::Open(folder).ok());
  const std::string file = folder + "/" + std::string(kModelFile);
  FlipFromEnd(file, 1);
  FlipFromEnd(file, 3 * (int64_t{8} << 20));
  EXPECT_THAT(std::string(Checkpoint::Open(folder).status().message()),
              HasSubstr("tensor 'c' is damaged"));
}

TEST_F(CheckpointTest, PruneRefusesToKeepNone) {
  EXPECT_EQ(PruneCheckpoints(directory_, {.keep_last = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, StaleTemporariesAreRemoved) {
  Save(1);
  ASSERT_TRUE(MakeDirectories(directory_ + "/.tmp-step_00000002").ok());
  Overwrite(directory_ + "/.tmp-step_00000002/state.json", "{");
  const auto removed = RemoveStaleTemporaries(directory_);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->deleted,
              ElementsAre(directory_ + "/.tmp-step_00000002"));
  EXPECT_THAT(removed->warnings, IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("step_00000001"));
  EXPECT_THAT(RemoveStaleTemporaries(directory_ + "/absent").value().deleted,
              IsEmpty());
}

TEST_F(CheckpointTest, NamesOfManyDigitsSortByStep) {
  EXPECT_EQ(CheckpointName(123456789012), "step_123456789012");
  Save(99999999);
  Save(100000000);
  const auto paths = ListCheckpoints(directory_);
  ASSERT_TRUE(paths.ok()) << paths.status();
  ASSERT_EQ(paths->size(), 2);
  EXPECT_EQ((*paths)[0].step, 100000000);
}

}  // namespace
}  // namespace tessera
