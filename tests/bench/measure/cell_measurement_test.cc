// A cell takes no longer than its study allows, and is not affected by one
// before it that ran out of memory.

#include "bench/measure/cell_measurement.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/cuda/device.h"
#include "framework/observe/memory/memory_recorder.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> MeasureTraining(const std::vector<std::string>& sets) {
  const KeepDeterminism keep;
  Study study{.cells = {{.configs = {"configs/tiny_cpu.pbtxt"}}}};
  study.config.mutable_training()->add_record(TrainingStudy::PARTS);
  study.config.mutable_training()->add_record(TrainingStudy::MEMORY);
  study.config.set_iterations(20);
  study.cells[0].overrides = sets;
  return MeasureCell(study, study.cells[0], ::testing::TempDir());
}

// Its Q, K and V fit, its scores do not fit anywhere.
absl::Status RunOutOfMemory() {
  Study study{.cells = {{}}};
  AttentionCell& cell = *study.config.mutable_attention()->mutable_cell();
  cell.mutable_attention()->set_backend(AttentionConfig::NAIVE);
  cell.set_length(1 << 20);
  cell.set_head_dim(8);
  return MeasureCell(study, study.cells[0], ::testing::TempDir()).status();
}

TEST(CellTimeTest, AMeasurementEndsAtItsTimeLimit) {
  Study study{.cells = {{.configs = {"configs/tiny_cpu.pbtxt"}}}};
  study.config.mutable_training()->add_record(TrainingStudy::PARTS);
  study.config.set_warmup(1000000);
  study.config.set_iterations(1000000);
  study.config.set_min_iterations(3);
  study.config.set_time_limit_s(1e-9);
  study.cells[0].overrides = {"training.batch_size=2",
                              "model.context_length=16"};
  const KeepDeterminism keep;
  const auto training =
      MeasureCell(study, study.cells[0], ::testing::TempDir());
  ASSERT_TRUE(training.ok()) << training.status();
  for (const char* call : {"forward_ms", "forward_backward_ms", "step_ms"}) {
    EXPECT_EQ((*training)[call]["samples"], 3) << call;
  }

  AttentionCell& cell = *study.config.mutable_attention()->mutable_cell();
  cell.mutable_attention()->set_backend(AttentionConfig::NAIVE);
  cell.set_length(16);
  const auto attention = MeasureCell(study, {}, ::testing::TempDir());
  ASSERT_TRUE(attention.ok()) << attention.status();
  for (const char* call : {"forward_ms", "backward_ms"}) {
    EXPECT_EQ((*attention)[call]["samples"], 3) << call;
  }
}

TEST(CellMemoryTest, ACellThatDoesNotFitLeavesNothingOnTheHost) {
  if (at::hasCUDA()) GTEST_SKIP() << "attention is measured on the GPU";
  const auto recorder = CreateMemoryRecorder(c10::kCPU);
  const auto held = [&] {
    { const StepScope step(recorder->phases(), 1); }
    StepRecord record;
    EXPECT_TRUE(recorder->AddTo(&record).ok());
    return record.memory->end.allocated;
  };
  const std::vector<std::string> toy = {"training.batch_size=2",
                                        "model.context_length=16"};
  ASSERT_TRUE(MeasureTraining(toy).ok());
  const int64_t before = held();
  const absl::Status planned =
      MeasureTraining({"training.batch_size=40000000"}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(planned)) << planned;
  EXPECT_EQ(held(), before);
  const absl::Status unplanned = RunOutOfMemory();
  EXPECT_TRUE(absl::IsResourceExhausted(unplanned)) << unplanned;
  EXPECT_EQ(held(), before);
  ASSERT_TRUE(MeasureTraining(toy).ok());
  EXPECT_EQ(held(), before);
}

TEST(GpuCellMemoryTest, ACellBeforeAndAfterOneThatDoesNotFitAgrees) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const auto device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const std::vector<std::string> cell = {
      "training.device=CUDA", "training.batch_size=8", "model.d_model=1024",
      "model.d_ff=4096",      "precision.mode=BF16",
  };
  ASSERT_TRUE(MeasureTraining(cell).ok());  // libraries take their memory
  const auto before = MeasureTraining(cell);
  ASSERT_TRUE(before.ok()) << before.status();
  const MemoryUse use = CurrentMemory(device->device);

  std::vector<std::string> larger = cell;
  larger.push_back("training.batch_size=4000000");
  const absl::Status planned = MeasureTraining(larger).status();
  EXPECT_TRUE(absl::IsResourceExhausted(planned)) << planned;
  const absl::Status attention = RunOutOfMemory();
  EXPECT_TRUE(absl::IsResourceExhausted(attention)) << attention;
  {
    // It fits the GPU, as its plan says, but not what is free.
    const auto now = OpenCudaDevice(0);
    ASSERT_TRUE(now.ok()) << now.status();
    const at::Tensor rest =
        at::empty({now->free_bytes - (int64_t{512} << 20)},
                  at::dtype(at::kByte).device(device->device));
    const absl::Status training = MeasureTraining(cell).status();
    EXPECT_TRUE(absl::IsResourceExhausted(training)) << training;
  }
  EmptyCache(device->device);

  const auto after = MeasureTraining(cell);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(CurrentMemory(device->device).allocated, use.allocated);
  EXPECT_EQ(CurrentMemory(device->device).reserved, use.reserved);
  for (const char* bytes :
       {"forward_peak_gib", "peak_gib", "reserved_gib", "kept_gib"}) {
    EXPECT_EQ((*after)["memory"][bytes], (*before)["memory"][bytes]) << bytes;
  }
}

TEST(GpuCellSnapshotTest, ACellWritesItsSnapshotIntoTheStudysFolder) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  Study study{.cells = {{.labels = {{"size", "tiny"}, {"context", "16"}},
                         .configs = {"configs/tiny_cpu.pbtxt"},
                         .overrides = {"training.device=CUDA"}}}};
  study.config.mutable_training()->add_record(TrainingStudy::SNAPSHOT);
  const std::string folder = absl::StrCat(::testing::TempDir(), "/cell");
  const auto figures = MeasureCell(study, study.cells[0], folder);
  ASSERT_TRUE(figures.ok()) << figures.status();
  const auto snapshot = ReadFile(absl::StrCat(folder,
                                              "/snapshots/size=tiny_context=16/"
                                              "memory_snapshot_step_1.pickle"),
                                 int64_t{1} << 30);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  // Allocations of the step know the phase that asked for them.
  EXPECT_TRUE(absl::StrContains(*snapshot, "forward"));
}

}  // namespace
}  // namespace tessera
