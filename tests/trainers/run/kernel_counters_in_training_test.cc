// observe.trace.kernel_counters in real training runs.

#include <ATen/ATen.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device_spec.h"
#include "framework/observe/report/run_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/new_process.h"
#include "tests/trainers/toy_session.h"
#include "trainers/plan/run_plan.h"
#include "trainers/run/instruments.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TEST(KernelCountersInTrainingTest, NeedAGpuAndOneRank) {
  const auto refused = [](const WorldInfo& world,
                          const std::optional<DeviceInfo>& device) {
    return std::string(
        PlanRun(ToyConfig("configs/tiny_cpu.pbtxt",
                          {"observe.trace.active=1",
                           "observe.trace.kernel_counters=true"}),
                world, device)
            .status()
            .message());
  };
  const DeviceInfo gpu = DeviceToPlanFor("H200").value();
  EXPECT_THAT(refused({}, {}), HasSubstr("kernel_counters: needs a GPU"));
  EXPECT_THAT(refused({.world_size = 2}, gpu),
              HasSubstr("kernel_counters: needs a single rank"));
  EXPECT_EQ(refused({}, gpu), "");
}

// Trains seven steps, of which a graph launches the last five.
absl::StatusOr<RunRecords> TrainIn(const std::string& folder, bool counters) {
  const RunConfig config = GpuSizedConfig(
      {"training.steps=7", "training.micro_batches=2", "model.vocab_size=2000",
       "training.deterministic=false", "attention.backend=NAIVE",
       "execution.mode=GRAPH", "execution.defer_update=false",
       "observe.log_every_steps=1", "observe.trace.wait=4",
       absl::StrCat("observe.trace.active=", counters ? 1 : 0),
       absl::StrCat("observe.trace.kernel_counters=",
                    counters ? "true" : "false")});
  ASSIGN_OR_RETURN(RunPlan plan, PlanRun(config, WorldInfo()));
  Instruments instruments(plan, folder);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Session> session,
      Session::Create(std::move(plan), {.phases = instruments.phases()}));
  ASSIGN_OR_RETURN(RunFolder run,
                   OpenRunFolder(folder, "never", /*writes=*/true));
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                   Trainer::Create(std::move(session), std::move(run),
                                   {.instruments = &instruments}));
  RETURN_IF_ERROR(trainer->Run());
  trainer.reset();
  return ReadRunRecords(folder);
}

std::vector<double> Losses(const RunRecords& run) {
  std::vector<double> losses = NumbersAt(run.steps, "loss");
  for (const double norm : NumbersAt(run.steps, "grad_norm")) {
    losses.push_back(norm);
  }
  return losses;
}

TEST(KernelCountersInTrainingWorker, DISABLED_LeaveTheLossesAsTheyAre) {
  const KeepDeterminism keep;
  const std::string folder =
      absl::StrCat(::testing::TempDir(), "/kernel_counters_", getpid());
  const auto plain = TrainIn(folder + "/plain", /*counters=*/false);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto counted = TrainIn(folder + "/counted", /*counters=*/true);
  ASSERT_TRUE(counted.ok()) << counted.status();
  std::cout << ReadFile(folder + "/counted/trace/steps_6-6/profile.txt")
                   .value_or("no profile.txt");
  EXPECT_TRUE(RemoveTree(folder).ok());

  ASSERT_EQ(Losses(*plain).size(), 14u);
  EXPECT_EQ(Losses(*counted), Losses(*plain));
  const Json& step = counted->profile.at("step");
  if (step["counters"].contains("not_counted")) {
    const std::string why = step["counters"]["not_counted"];
    ASSERT_THAT(why, HasSubstr("NVreg_RestrictProfilingToAdminUsers"));
    GTEST_SKIP() << why;
  }
  EXPECT_EQ(step["counters"]["step"], 2);
  int products = 0, optimizers = 0;
  for (size_t i = 0; i < 10; ++i) {
    const Json& kernel = step["kernels"][i];
    if (kernel["class"] == "copy") continue;
    SCOPED_TRACE(kernel.dump(1));
    ASSERT_TRUE(kernel.contains("dram_bytes"));
    EXPECT_GT(kernel["dram_bytes"], 0);
    EXPECT_GE(kernel["l2_hit_pct"], 0);
    EXPECT_LE(kernel["l2_hit_pct"], 100);
    if (kernel["class"] == "GEMM") {
      ++products;
      EXPECT_GT(kernel["tensor_pipe_pct"], 5);
    }
    if (kernel["op"] == "optimizer adamw") {
      ++optimizers;
      const double planned = kernel["bytes"];
      EXPECT_NEAR(kernel["dram_bytes"].get<double>() *
                      kernel["instances"].get<double>(),
                  planned, 0.2 * planned);
      EXPECT_LT(kernel["tensor_pipe_pct"], 1);
    }
  }
  EXPECT_GT(products, 0);
  EXPECT_EQ(optimizers, 1);
}

TEST(GpuKernelCountersInTrainingTest, LeaveTheLossesAsTheyAre) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  testing::RunInNewProcess(
      "KernelCountersInTrainingWorker.DISABLED_LeaveTheLossesAsTheyAre");
}

}  // namespace
}  // namespace tessera
