// A cell takes no longer than its study allows, and is not affected by one
// before it that ran out of memory.

#include "bench/measure/cell_measurement.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/measure/measurement.h"
#include "framework/base/file.h"
#include "framework/base/status_macros.h"
#include "framework/cuda/device.h"
#include "framework/observe/format.h"
#include "framework/observe/memory/memory_recorder.h"
#include "gtest/gtest.h"
#include "tests/trainers/toy_session.h"
#include "trainers/config/config_loader.h"

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

TEST(CheckFiguresTest, ATableShowsOnlyWhatIsRecorded) {
  Study study{.cells = {{}}};
  study.config.mutable_training()->add_record(TrainingStudy::MEMORY);
  StudyColumn& column = *study.config.add_table()->add_column();
  column.set_figure("memory.peak_gib");
  EXPECT_TRUE(CheckFigures(study).ok()) << CheckFigures(study);
  column.set_figure("forward_ms.mean");
  const absl::Status missing = CheckFigures(study);
  EXPECT_TRUE(absl::IsInvalidArgument(missing)) << missing;
  EXPECT_TRUE(absl::StrContains(missing.message(), "forward_ms.mean"));
  EXPECT_TRUE(absl::StrContains(missing.message(), "step_ms"));
  study.config.mutable_training()->add_record(TrainingStudy::PARTS);
  EXPECT_TRUE(CheckFigures(study).ok()) << CheckFigures(study);
  study.config.add_plot()->set_y("memroy.peak_gib");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFigures(study)));
}

TEST(MeasurementsTest, EachRecordHasOneRow) {
  std::vector<int> rows(TrainingStudy::Record_ARRAYSIZE);
  for (const Measurement& row : Measurements()) ++rows[row.record];
  for (int record = 1; record < TrainingStudy::Record_ARRAYSIZE; ++record) {
    EXPECT_EQ(rows[record], 1) << TrainingStudy::Record_Name(record);
  }
}

TEST(MeasurementsTest, ACellHasTheFiguresOfItsRows) {
  const auto figures =
      MeasureTraining({"training.batch_size=2", "model.context_length=16"});
  ASSERT_TRUE(figures.ok()) << figures.status();
  Study study{.cells = {{}}};
  study.config.mutable_training()->add_record(TrainingStudy::PARTS);
  study.config.mutable_training()->add_record(TrainingStudy::MEMORY);
  for (const auto& [name, figure] : figures->items()) {
    study.config.clear_plot();
    study.config.add_plot()->set_y(name);
    EXPECT_TRUE(CheckFigures(study).ok()) << CheckFigures(study);
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

// A launch of a graph allocates nothing, and a graph that is gone left cuBLAS's
// workspace behind.
TEST(GpuCellMemoryTest, PlanEagerGraphAndDriverAgree) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  const auto device = OpenCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  struct Seen {
    Json memory;
    double driver_gib = 0;  // that the cell took beside libraries' own memory
  };
  const auto measure = [&](const std::string& mode) -> absl::StatusOr<Seen> {
    ASSIGN_OR_RETURN(
        const RunConfig config,
        LoadRunConfig({"configs/small.pbtxt"},
                      {"data={synthetic {}}", "training.eval_batches=0",
                       "precision.mode=BF16", "model.context_length=512",
                       absl::StrCat("execution.mode=", mode)}));
    EmptyCache(device->device);
    const int64_t before = BytesInUse(device->device);
    StudyConfig study;
    study.mutable_training()->add_record(TrainingStudy::MEMORY);
    TrainingCell cell(study, config);
    Json figures;
    RETURN_IF_ERROR(MeasureSetUp(cell, figures));
    RETURN_IF_ERROR(MeasureStep(cell, figures));
    RETURN_IF_ERROR(MeasurePeakMemory(cell, figures));
    return Seen{
        figures["memory"],
        static_cast<double>(BytesInUse(device->device) - before) / kGibibyte};
  };
  // The first two load kernels and make handles.
  for (const char* mode : {"EAGER", "GRAPH"}) {
    const auto first = measure(mode);
    ASSERT_TRUE(first.ok()) << first.status();
  }
  for (const char* mode : {"EAGER", "GRAPH", "EAGER"}) {
    const auto seen = measure(mode);
    ASSERT_TRUE(seen.ok()) << seen.status();
    const double peak = seen->memory["peak_gib"];
    EXPECT_NEAR(seen->memory["plan_error_pct"], 0, 0.1) << mode;
    EXPECT_NEAR(seen->memory["reserved_error_pct"], 0, 1) << mode;
    EXPECT_GE(seen->memory["reserved_gib"], peak) << mode;
    EXPECT_NEAR(seen->driver_gib / seen->memory["reserved_gib"].get<double>(),
                1, 0.02)
        << mode << ": " << seen->memory;
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

Json FormatFigures(const std::string& format) {
  Study study{
      .cells = {{.configs = {"configs/tiny_cpu.pbtxt"},
                 .study_overrides = {"memory_formats.format=" + format}}}};
  study.config.mutable_memory_formats()->set_gpu("H100");
  const auto figures = MeasureCell(study, study.cells[0], ::testing::TempDir());
  EXPECT_TRUE(figures.ok()) << figures.status();
  return figures.value_or(Json());
}

TEST(MemoryFormatsTest, OnlyOperandsOfLinearLayersShrink) {
  const Json fp32 = FormatFigures("FP32"), bf16 = FormatFigures("BF16");
  const Json fp8 = FormatFigures("FP8"), fp4 = FormatFigures("FP4");
  const double operands = bf16["operands_gib"];
  EXPECT_GT(operands, 0);
  EXPECT_EQ(bf16["copies_gib"], 0);
  EXPECT_EQ(fp32["copies_gib"], 0);
  EXPECT_GT(fp32["total_gib"], bf16["total_gib"]);
  for (const auto& [figures, share] :
       {std::pair{fp8, 0.5}, {fp4, (0.5 + 1.0 / 16) / 2}}) {
    EXPECT_DOUBLE_EQ(figures["operands_gib"], operands * share);
    const double saved = operands * (1 - share);
    EXPECT_NEAR(figures["kept_gib"], bf16["kept_gib"].get<double>() - saved,
                1e-9);
    EXPECT_NEAR(figures["total_gib"].get<double>(),
                bf16["total_gib"].get<double>() - saved +
                    figures["copies_gib"].get<double>(),
                1e-9);
    EXPECT_EQ(figures["moments_gib"], bf16["moments_gib"]);
  }
  EXPECT_DOUBLE_EQ(fp4["copies_gib"].get<double>(),
                   fp8["copies_gib"].get<double>() * (0.5 + 1.0 / 16));
}

}  // namespace
}  // namespace tessera
