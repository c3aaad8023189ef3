// The memory of real training steps on a GPU, as observe.memory reports it.

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory_record.h"
#include "framework/observe/run_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/trainers/toy_session.h"
#include "trainers/run/instruments.h"
#include "trainers/run/run_folder.h"
#include "trainers/run/trainer.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

// Two micro-batches: with one, activations lie in the gradient buffer.
RunConfig Config(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {
      "training.steps=4",        "training.micro_batches=2",
      "model.vocab_size=2000",   "training.deterministic=false",
      "attention.backend=NAIVE", "observe.log_every_steps=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return GpuSizedConfig(sets);
}

class Samples : public RunObserver {
 public:
  absl::Status OnSample(const SampleRecord& sample) override {
    texts.push_back(sample.text);
    return absl::OkStatus();
  }
  std::vector<std::string> texts;
};

class GpuTrainingMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
    ASSERT_TRUE(RemoveTree(folder_).ok());
  }
  void TearDown() override {
    trainer_.reset();
    instruments_.reset();
    EXPECT_TRUE(RemoveTree(folder_).ok());
  }

  void Create(const std::vector<std::string>& more) {
    auto plan = PlanRun(Config(more), WorldInfo());
    ASSERT_TRUE(plan.ok()) << plan.status();
    device_ = plan->device;
    c10::cuda::CUDACachingAllocator::emptyCache();
    ResetPeakMemory(device_.device);
    instruments_ = std::make_unique<Instruments>(*plan, folder_);
    auto session =
        Session::Create(*std::move(plan), {.phases = instruments_->phases()});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = session->get();
    auto folder = OpenRunFolder(folder_, "never", /*writes=*/true);
    ASSERT_TRUE(folder.ok()) << folder.status();
    auto trainer = Trainer::Create(
        *std::move(session), *std::move(folder),
        {.instruments = instruments_.get(), .observers = {&samples_}});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    trainer_ = *std::move(trainer);
  }

  std::vector<Json> Records(const std::string& type) const {
    std::vector<Json> records;
    std::ifstream log(folder_ + "/run.jsonl");
    for (std::string line; std::getline(log, line);) {
      Json record = Json::parse(line);
      if (record["type"] == type) records.push_back(std::move(record));
    }
    return records;
  }

  const KeepDeterminism keep_;
  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/training_memory_", getpid());
  DeviceInfo device_;
  Samples samples_;
  std::unique_ptr<Instruments> instruments_;
  std::unique_ptr<Trainer> trainer_;
  Session* session_ = nullptr;
};

int64_t Sum(const Json& moment) {
  int64_t sum = moment["slack"];
  for (const char* name : kMemoryCategoryNames) {
    sum += moment[name].get<int64_t>();
  }
  return sum;
}

TEST_F(GpuTrainingMemoryTest, CategoriesAddUpToTheAllocatorsCount) {
  Create({"observe.memory=true", "observe.memory_snapshot_step=3"});
  if (HasFatalFailure()) return;
  const absl::Status status = trainer_->Run();
  ASSERT_TRUE(status.ok()) << status;
  const MemoryUse use = CurrentMemory(device_.device);
  const std::vector<Json> records = Records("memory");
  const std::vector<Json> steps = Records("step");
  ASSERT_EQ(records.size(), 2u);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_TRUE(records[0].contains("timeline"));
  EXPECT_FALSE(records[1].contains("timeline"));
  const Json& record = records[1];
  SCOPED_TRACE(absl::StrCat("now allocated ", use.allocated, ", peak ",
                            use.peak_allocated, "\n", record.dump(2)));
  EXPECT_EQ(record["step"], 4);

  const Json& peak = record["peak"];
  const auto most = static_cast<double>(use.peak_allocated);
  EXPECT_NEAR(static_cast<double>(Sum(peak)), most, 0.01 * most);
  EXPECT_NEAR(steps[1]["peak_gib"].get<double>() * 0x1p30, most, 0.01 * most);
  EXPECT_EQ(Sum(peak), peak["allocated"].get<int64_t>());
  EXPECT_GE(peak["slack"].get<double>(), -0.001 * most);
  EXPECT_LE(peak["slack"].get<double>(), 0.03 * most);
  EXPECT_GE(peak["fragmentation"].get<int64_t>(), 0);

  const TrainingState state = session_->state();
  for (const char* moment : {"peak", "end"}) {
    SCOPED_TRACE(moment);
    const Json& bytes = record[moment];
    const WeightBuffers& weights = state.parameters->weights();
    EXPECT_EQ(
        bytes["parameters"],
        weights.master.nbytes() + weights.high.nbytes() + weights.low.nbytes());
    EXPECT_EQ(bytes["shadow"], 0);
    EXPECT_EQ(bytes["gradients"], state.parameters->grad().nbytes());
    EXPECT_EQ(bytes["optimizer"], state.optimizer->exp_avg().nbytes() +
                                      state.optimizer->exp_avg_sq().nbytes());
  }
  // What the executor itself counts.
  const auto kept = static_cast<double>(session_->step().kept_bytes());
  EXPECT_NEAR(record["saved"]["bytes"].get<double>(), kept, 0.01 * kept);
  for (const char* block : {"block_0", "block_3"}) {
    EXPECT_TRUE(record["saved"]["of"].contains(block)) << block;
  }
  EXPECT_GE(peak["activations"].get<double>(), 0.5 * kept);
  EXPECT_LE(record["end"]["activations"].get<double>(), 0.01 * kept);
  for (const char* phase :
       {"prepare", "forward", "backward", "clip", "optimizer"}) {
    EXPECT_TRUE(record["phases"].contains(phase)) << phase;
  }
  EXPECT_EQ(record["largest"].size(), 10u);
  // A CUDA context; a GPU that others use may have more in use.
  EXPECT_GE(record["outside"].get<int64_t>(), int64_t{100} << 20);
  EXPECT_TRUE(FileExists(folder_ + "/memory_snapshot_step_3.pickle"));
}

// The sample is generated in the memory that the step's graphs have left.
TEST_F(GpuTrainingMemoryTest, TheSampleAtTheEndFollowsAGraphRun) {
  const std::vector<std::string> sets = {"execution.mode=GRAPH",
                                         "training.sample_tokens_at_end=8"};
  ASSERT_NO_FATAL_FAILURE(Create(sets));
  const absl::Status run = trainer_->Run();
  ASSERT_TRUE(run.ok()) << run;
  EXPECT_EQ(Records("step").size(), 2u);
  ASSERT_EQ(samples_.texts.size(), 1u);
  EXPECT_NE(samples_.texts[0], "");
  // Not more than the step's own peak.
  EXPECT_LE(
      static_cast<double>(CurrentMemory(device_.device).peak_allocated),
      1.01 * static_cast<double>(session_->plan().memory.report.allocated()));
}

TEST_F(GpuTrainingMemoryTest, WhenMemoryRunsOutTheErrorNamesTheSnapshot) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  Create({});
  if (HasFatalFailure()) return;
  // Less than cuBLAS's workspace, without what earlier tests left cached.
  EmptyCache(device_.device);
  const double allowed =
      static_cast<double>(CurrentMemory(device_.device).reserved + (8 << 20));
  allocator::setMemoryFraction(
      allowed / static_cast<double>(device_.total_bytes),
      device_.device.index());
  const auto restore = absl::MakeCleanup(
      [this] { allocator::setMemoryFraction(1, device_.device.index()); });
  const absl::Status status = trainer_->Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string file = folder_ + "/out_of_memory.pickle";
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("out of memory"), HasSubstr(file),
                             HasSubstr("memory_viz")));
  EXPECT_THAT(ReadFile(file).value_or(""), HasSubstr("active_allocated"));
}

}  // namespace
}  // namespace tessera
