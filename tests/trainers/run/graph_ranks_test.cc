// Ranks whose steps are CUDA graphs.

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/dist/world.h"
#include "framework/observe/report/run_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/launch_tests.h"
#include "tests/trainers/toy_session.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

constexpr char kFolder[] = "GRAPH_RANKS_TEST_FOLDER";
constexpr char kMode[] = "GRAPH_RANKS_TEST_MODE";
constexpr char kZero[] = "GRAPH_RANKS_TEST_ZERO";

// Trains six steps, which a graph launches from the third one on.
absl::Status TrainAsRank() {
  const std::string folder = std::getenv(kFolder);
  ASSIGN_OR_RETURN(const WorldInfo world, WorldFromEnvironment());
  ASSIGN_OR_RETURN(RunFolder run,
                   OpenRunFolder(folder, "never", /*writes=*/world.rank == 0));
  ASSIGN_OR_RETURN(
      std::unique_ptr<Session> session,
      Session::Create(
          GpuSizedConfig(
              {"training.steps=6", "training.micro_batches=2",
               "training.eval_batches=1", "training.eval_every_steps=4",
               "observe.log_every_steps=1",
               // Two runs that choose by timing choose differently.
               "execution.tune_products=false", "training.deterministic=true",
               "execution.overlap_weight_gradients=true",
               absl::StrCat("layout.zero=", std::getenv(kZero)),
               absl::StrCat("execution.mode=", std::getenv(kMode))}),
          {}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(session), std::move(run), {}));
  return trainer->Run();
}

TEST(GraphRanksWorker, DISABLED_Train) {
  const KeepDeterminism keep;
  const absl::Status status = TrainAsRank();
  EXPECT_TRUE(status.ok()) << status;
}

struct Trained {
  std::vector<double> losses, gradient_norms;
  nlohmann::json files;  // with their checksums
  std::string output;
};

// The names of the tensors of `file` that differ.
std::vector<std::string> Differing(const Trained& a, const Trained& b,
                                   const std::string& file) {
  std::vector<std::string> names;
  const nlohmann::json& others = b.files[file]["tensors"];
  for (const auto& [name, checksum] : a.files[file]["tensors"].items()) {
    if (others.value(name, nlohmann::json()) != checksum) names.push_back(name);
  }
  return names;
}

Trained TrainRanks(int nproc, const std::string& mode,
                   const std::string& zero) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/graph_ranks_",
                                          mode, zero, "_", getpid());
  EXPECT_TRUE(RemoveTree(folder).ok());
  const absl::Cleanup remove = [&] { RemoveTree(folder).IgnoreError(); };
  LaunchOptions options;
  options.nproc = nproc;
  options.environment = {{kFolder, folder}, {kMode, mode}, {kZero, zero}};
  options.timeout = absl::Minutes(2);
  const LaunchedTests ranks =
      LaunchTests("GraphRanksWorker.*", std::move(options));
  EXPECT_EQ(ranks.exit_code, 0) << ranks.output;
  const auto records = ReadRunRecords(folder);
  const auto manifest =
      ReadFile(folder + "/checkpoints/step_00000006/manifest.json");
  if (!records.ok() || !manifest.ok()) return {};
  return {.losses = NumbersAt(records->steps, "loss"),
          .gradient_norms = NumbersAt(records->steps, "grad_norm"),
          .files = nlohmann::json::parse(*manifest)["files"],
          .output = ranks.output};
}

class GpuGraphRanksTest : public testing::TestWithParam<int> {};

TEST_P(GpuGraphRanksTest, HaveTheBitsOfEagerRanksAtEveryZeroStage) {
  const int nproc = GetParam();
  if (at::getNumGPUs() < nproc) {
    GTEST_SKIP() << "needs " << nproc << " CUDA GPUs";
  }
  // With two micro-batches, stages 2 and 3 add in another order than 0 and 1.
  for (const auto& [first, second] : {std::pair{"0", "1"}, {"2", "3"}}) {
    const Trained eager = TrainRanks(nproc, "EAGER", first);
    ASSERT_EQ(eager.losses.size(), 6u);
    for (const auto& [mode, zero] :
         {std::pair{"GRAPH", first}, {"EAGER", second}, {"GRAPH", second}}) {
      SCOPED_TRACE(absl::StrCat(mode, ", ZeRO ", zero));
      const Trained other = TrainRanks(nproc, mode, zero);
      ASSERT_EQ(other.losses, eager.losses)
          << other.output << "\nand of " << eager.output;
      EXPECT_EQ(other.gradient_norms, eager.gradient_norms);
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        ASSERT_FALSE(other.files[file]["tensors"].empty());
        EXPECT_THAT(Differing(other, eager, file), IsEmpty()) << file;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuGraphRanksTest, testing::Values(2, 4));

}  // namespace
}  // namespace tessera
