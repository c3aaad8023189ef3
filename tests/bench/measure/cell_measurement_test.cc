// A cell takes no longer than its study allows, and is not affected by one
// before it that ran out of memory.

#include "bench/measure/cell_measurement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "attention_backends/cached_attention.h"
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
  StudyPlot& plot = *study.config.add_plot();
  plot.set_y("memroy.peak_gib");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFigures(study)));
  plot.set_y("step_ms.mean");
  plot.set_x_title("GiB");
  plot.set_x("memroy.peak_gib");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFigures(study)));
  plot.set_x("memory.peak_gib");
  EXPECT_TRUE(CheckFigures(study).ok()) << CheckFigures(study);
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

// NAIVE on a GPU: dP and dS are held only while the backward pass runs, as its
// formula says. The forward pass frees its mask before it allocates O, so its
// peak is what it leaves. The libraries' memory is not counted there.
TEST(GpuCellAttentionTest, WorkspaceIsAsPlanned) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  Study study{.cells = {{}}};
  study.config.set_iterations(2);
  AttentionCell& cell = *study.config.mutable_attention()->mutable_cell();
  cell.mutable_attention()->set_backend(AttentionConfig::NAIVE);
  for (const int length : {512, 1000}) {
    cell.set_length(length);
    const auto figures =
        MeasureCell(study, study.cells[0], ::testing::TempDir());
    ASSERT_TRUE(figures.ok()) << figures.status();
    const Json& planned = (*figures)["tensors_mib"];
    const Json& measured = (*figures)["measured_mib"];
    EXPECT_GT(planned["backward_workspace"], 8) << *figures;
    EXPECT_NEAR(measured["backward_workspace"].get<double>() /
                    planned["backward_workspace"].get<double>(),
                1, 0.001)
        << *figures;
    EXPECT_LE(measured["forward_workspace"], planned["forward_workspace"])
        << *figures;
    EXPECT_GT(measured["library"], 1) << *figures;  // cuBLAS's workspace
  }
}

TEST(GpuCellCountersTest, TheLongestKernelsHaveCounters) {
  if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA GPU";
  const KeepDeterminism keep;
  Study study{
      .cells = {{.configs = {"configs/small.pbtxt"},
                 .overrides = {"training.batch_size=1", "precision.mode=BF16",
                               "model.num_layers=2"}}}};
  for (const auto record : {TrainingStudy::COUNTERS, TrainingStudy::KERNELS}) {
    study.config.mutable_training()->add_record(record);
  }
  study.config.set_iterations(2);
  const auto figures = MeasureCell(study, study.cells[0], ::testing::TempDir());
  ASSERT_TRUE(figures.ok()) << figures.status();
  if (!figures->contains("counters")) GTEST_SKIP() << "may not read counters";
  const Json& counters = (*figures)["counters"];
  ASSERT_EQ(counters.size(), 10u);
  double most = 0;
  for (const Json& kernel : counters) {
    EXPECT_GT(kernel["dram_bytes"], 0) << kernel;
    EXPECT_NE(kernel["op"], "") << kernel;
    most = std::max(most, kernel["tensor_pipe_pct"].get<double>());
  }
  EXPECT_GT(most, 10);  // products
  // The step was recorded and traced after that as without counters.
  EXPECT_GT((*figures)["kernels"]["activities"], 50);
}

TEST(AllocationsTest, TheFirstMomentsAreNoHalfOfTheOptimizer) {
  const KeepDeterminism keep;
  Study study{.cells = {{.configs = {"configs/tiny_cpu.pbtxt"}}}};
  study.config.mutable_training()->add_record(TrainingStudy::ALLOCATIONS);
  study.config.set_iterations(1);
  for (const char* const optimizer :
       {"optimizer.ema.decay=0.9", "optimizer.muon.normuon_beta2=0.9"}) {
    study.cells[0].overrides = {"training.batch_size=2",
                                "model.context_length=16", optimizer};
    const auto figures =
        MeasureCell(study, study.cells[0], ::testing::TempDir());
    ASSERT_TRUE(figures.ok()) << figures.status();
    const Json& parts = (*figures)["allocations"]["parts"];
    EXPECT_EQ(parts["optimizer"], parts["parameters"]) << optimizer;
  }
}

TEST(DecodeTest, ALayerReadsTheKeysThatItSees) {
  const auto plan = [](const std::vector<std::string>& sets) {
    return PlanRun(ToyConfig("configs/tiny_cpu.pbtxt", sets), WorldInfo())
        .value();
  };
  const RunPlan all = plan({});
  // The other layer's window is longer than the context.
  const RunPlan windows =
      plan({"model.attention_window=[{tokens: 4}, {tokens: 100}]"});
  EXPECT_EQ(BytesOfToken(all) - BytesOfToken(windows),
            CacheType(all.shape.context - 4, all.attention).bytes());
}

TEST(DecodeTest, NeedsATokenAfterThePromptsOwn) {
  const KeepDeterminism keep;
  Study study{.cells = {{.configs = {"configs/tiny_cpu.pbtxt"}}}};
  study.config.mutable_training()->add_record(TrainingStudy::DECODE);
  study.config.set_iterations(1);
  const auto measured = [&](int context) {
    study.cells[0].overrides = {"training.batch_size=2",
                                absl::StrCat("model.context_length=", context)};
    return MeasureCell(study, study.cells[0], ::testing::TempDir());
  };
  const auto shortest = measured(4);
  ASSERT_TRUE(shortest.ok()) << shortest.status();
  EXPECT_EQ((*shortest)["decode"]["token_ms"]["samples"], 1);
  const absl::Status shorter = measured(3).status();
  EXPECT_TRUE(absl::IsInvalidArgument(shorter)) << shorter;
  EXPECT_TRUE(absl::StrContains(shorter.message(), "model.context_length is 3"))
      << shorter;
}

TEST(AttentionCellTest, TheLongestLengthIsBesideOneThatRanOutOfMemory) {
  if (at::hasCUDA()) GTEST_SKIP() << "attention is measured on the GPU";
  Study study{.cells = {{}}};
  AttentionCell& cell = *study.config.mutable_attention()->mutable_cell();
  cell.mutable_attention()->set_backend(AttentionConfig::NAIVE);
  cell.set_find_largest_length(true);
  cell.set_head_dim(8);
  cell.set_batch(1);
  // The longer one's scores take 16 TiB.
  cell.set_search_step(1 << 11);
  cell.set_search_limit(1 << 11);
  const auto fits = MeasureCell(study, study.cells[0], ::testing::TempDir());
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ((*fits)["largest_length"], 1 << 11);
  EXPECT_FALSE(fits->contains("out_of_memory_at")) << *fits;
  cell.set_search_step(1 << 21);
  cell.set_search_limit(1 << 21);
  const auto fails = MeasureCell(study, study.cells[0], ::testing::TempDir());
  ASSERT_TRUE(fails.ok()) << fails.status();
  EXPECT_EQ((*fails)["largest_length"], 0);
  EXPECT_EQ((*fails)["out_of_memory_at"], 1 << 21);
}

TEST(NormStatisticsTest, Bf16StatisticsLoseMoreThanRounding) {
  Study study{.cells = {{}}};
  NormStatisticsStudy& cell = *study.config.mutable_norm_statistics();
  cell.set_rows(64);
  const auto measured = [&](NormStatisticsStudy::Norm norm, double mean,
                            AccumulationStudy::Dtype statistics) {
    cell.set_norm(norm);
    cell.set_mean(mean);
    cell.set_statistics(statistics);
    return MeasureCell(study, study.cells[0], ::testing::TempDir()).value();
  };
  for (const auto norm :
       {NormStatisticsStudy::RMS, NormStatisticsStudy::LAYER}) {
    for (const double mean : {0.0, 8.0}) {
      const Json fp32 = measured(norm, mean, AccumulationStudy::FP32);
      const double rounding = fp32["rounding_error"];
      EXPECT_GT(rounding, 0);
      EXPECT_NEAR(fp32["rms_error"].get<double>() / rounding, 1, 0.01);
      const Json bf16 = measured(norm, mean, AccumulationStudy::BF16);
      EXPECT_GT(bf16["rms_error"].get<double>(), 1.05 * rounding);
      EXPECT_GE(bf16["max_error"], bf16["rms_error"]);
    }
  }
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
