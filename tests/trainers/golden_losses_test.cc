// Compares losses and gradient norms of seeded runs, step by step, with
// golden/. After an intended change, write the files again:
//
//   WRITE_GOLDEN=tests/trainers/golden bazel run
//   //tests/trainers:golden_losses_test

#include <ATen/Context.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "framework/base/file.h"
#include "framework/base/runtime_files.h"
#include "framework/cuda/device.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/toy_session.h"
#include "trainers/config/config_loader.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

struct Step {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
};

// Parses the steps from lines of JSON: a golden file or a run's log.
std::vector<Step> ParseSteps(const std::string& text) {
  std::vector<Step> steps;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (!record.contains("grad_norm")) continue;
    steps.push_back({record["step"], record["loss"], record["grad_norm"]});
  }
  return steps;
}

std::string PrintSteps(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    const nlohmann::ordered_json record = {{"step", step.step},
                                           {"loss", step.loss},
                                           {"grad_norm", step.grad_norm}};
    absl::StrAppend(&text, record.dump(), "\n");
  }
  return text;
}

// The first value that differs from the golden one by more than `tolerance`,
// relative; empty if there is none.
std::string FirstDifference(const std::vector<Step>& golden,
                            const std::vector<Step>& found, double tolerance) {
  if (found.size() != golden.size()) {
    return absl::StrCat(found.size(), " steps instead of ", golden.size());
  }
  for (size_t i = 0; i < golden.size(); ++i) {
    const auto compare = [&](absl::string_view name, double want, double is) {
      if (std::abs(is - want) <= tolerance * std::abs(want)) {
        return std::string();
      }
      return absl::StrCat(
          "step ", golden[i].step, ": ", name, " ", nlohmann::json(is).dump(),
          " instead of ", nlohmann::json(want).dump(),
          ", a relative difference of ", std::abs(is / want - 1), "; ",
          tolerance, " is allowed");
    };
    std::string difference = compare("loss", golden[i].loss, found[i].loss);
    if (difference.empty()) {
      difference =
          compare("gradient norm", golden[i].grad_norm, found[i].grad_norm);
    }
    if (!difference.empty()) return difference;
  }
  return "";
}

// Trains with a config and overrides. `change` may modify the initial state.
std::vector<Step> Train(
    const std::string& config, std::vector<std::string> sets,
    const std::function<void(Session&)>& change = [](Session&) {}) {
  // Synthetic tokens, because the default text differs between LibTorch builds.
  sets.insert(
      sets.begin(),
      {"data.synthetic={}", "training.steps=20", "training.eval_batches=0",
       "training.sample_tokens_at_end=0", "observe.log_every_steps=1"});
  const KeepDeterminism keep;
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/golden_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  auto session = Session::Create(LoadRunConfig({config}, sets).value(), {});
  EXPECT_TRUE(session.ok()) << session.status();
  change(**session);
  auto trainer =
      Trainer::Create(*std::move(session),
                      OpenRunFolder(folder, "never", /*writes=*/true).value(),
                      TrainerOptions());
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Run();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<Step> steps = ParseSteps(ReadFile(folder + "/run.jsonl").value());
  EXPECT_TRUE(RemoveTree(folder).ok());
  return steps;
}

// The folder to which golden files are written instead of compared; else null.
const char* WriteFolder() { return std::getenv("WRITE_GOLDEN"); }

std::string GoldenFile(const std::string& name) {
  return absl::StrCat("tests/trainers/golden/", name, ".jsonl");
}

// Compares with golden/NAME.jsonl, or writes the file.
void CompareWithGolden(const std::string& name, const std::vector<Step>& found,
                       double tolerance) {
  if (const char* folder = WriteFolder()) {
    const std::string path =
        absl::StrCat(UserPath(folder), "/", name, ".jsonl");
    const absl::Status written = WriteFileAtomically(path, PrintSteps(found));
    ASSERT_TRUE(written.ok()) << written;
    GTEST_SKIP() << "wrote " << path;
  }
  const auto path = FindRuntimeFile(GoldenFile(name));
  ASSERT_TRUE(path.ok()) << path.status();
  const std::vector<Step> golden = ParseSteps(ReadFile(*path).value());
  EXPECT_EQ(FirstDifference(golden, found, tolerance), "")
      << "If the change is meant to alter results, write " << GoldenFile(name)
      << " anew: CONTRIBUTING.md says how.";
}

// 50 times the largest difference between instruction sets (SSE to AVX-512), 1
// to 16 threads and three attention backends. All sums have a fixed order
// except those in MKL's matrix products.
constexpr double kCpuTolerance = 1e-5;

// The vocabulary is so small that 20 steps halve the loss; the first 12 steps
// are clipped.
std::vector<std::string> TinyCpuSets() {
  return {"model.vocab_size=256", "optimizer.clip_norm=0.6"};
}

TEST(GoldenLossesTest, TinyCpu) {
  CompareWithGolden("tiny_cpu", Train("configs/tiny_cpu.pbtxt", TinyCpuSets()),
                    kCpuTolerance);
}

// A small mistake that the tolerance must not hide.
struct Mistake {
  std::string name;
  std::vector<std::string> sets;
  std::function<void(Session&)> change = [](Session&) {};
};

class GoldenMistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(GoldenMistakeTest, IsSeen) {
  if (WriteFolder() != nullptr) GTEST_SKIP() << "writes golden files";
  std::vector<std::string> sets = TinyCpuSets();
  sets.insert(sets.end(), GetParam().sets.begin(), GetParam().sets.end());
  const auto path = FindRuntimeFile(GoldenFile("tiny_cpu"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_NE(
      FirstDifference(ParseSteps(ReadFile(*path).value()),
                      Train("configs/tiny_cpu.pbtxt", sets, GetParam().change),
                      kCpuTolerance),
      "");
}

void ScaleTheHead(Session& session) {
  ParameterStore& store = *session.state().parameters;
  for (const ParameterSlice& slice : store.slices()) {
    if (slice.name != "lm_head.weight") continue;
    const at::Tensor values = at::empty({slice.numel});
    store.Read(slice, 0, values);
    store.Write(slice, 0, values * 1.001);
    return;
  }
  FAIL() << "no lm_head.weight";
}

INSTANTIATE_TEST_SUITE_P(
    All, GoldenMistakeTest,
    testing::Values(Mistake{"LearningRate", {"optimizer.adamw.lr=2.002e-3"}},
                    Mistake{"Clipping", {"optimizer.clip_norm=0.606"}},
                    Mistake{"WeightDecay",
                            {"optimizer.adamw.weight_decay=0.101"}},
                    Mistake{"InitialValues", {}, ScaleTheHead}),
    [](const testing::TestParamInfo<Mistake>& info) {
      return info.param.name;
    });

TEST(FirstDifferenceTest, NamesTheStepAndBothValues) {
  const std::vector<Step> golden = {{1, 4, 1}, {2, 2, 0.5}, {3, 1, 0.25}};
  std::vector<Step> found = golden;
  EXPECT_EQ(FirstDifference(golden, found, 0), "");
  found[2].loss = 1.5;
  found[1].grad_norm = 0.625;
  EXPECT_EQ(FirstDifference(golden, found, 0.125),
            "step 2: gradient norm 0.625 instead of 0.5, a relative difference "
            "of 0.25; 0.125 is allowed");
  EXPECT_EQ(FirstDifference(golden, found, 0.25),
            "step 3: loss 1.5 instead of 1.0, a relative difference of 0.5; "
            "0.25 is allowed");
  found[2].loss = NAN;
  EXPECT_NE(FirstDifference(golden, found, 0.25), "");
  found.pop_back();
  EXPECT_EQ(FirstDifference(golden, found, 1), "2 steps instead of 3");
}

// Bitwise, on GPUs with the model in the file's name.
TEST(GpuGoldenLossesTest, SmallBf16) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const std::string gpu = OpenCudaDevice(0).value().name;
  const std::string name = absl::StrCat(
      "small_bf16_", absl::StrReplaceAll(gpu, {{" ", "_"}, {"/", "_"}}));
  if (WriteFolder() == nullptr && !FindRuntimeFile(GoldenFile(name)).ok()) {
    GTEST_SKIP() << "there are no golden losses of a " << gpu << ", "
                 << GoldenFile(name) << "; CONTRIBUTING.md says how to write "
                 << "them";
  }
  CompareWithGolden(
      name,
      Train("configs/small_bf16.pbtxt",
            {"optimizer.clip_norm=0.1", "execution.tune_products=false"}),
      /*tolerance=*/0);
}

}  // namespace
}  // namespace tessera
