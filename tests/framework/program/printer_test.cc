#include "framework/program/printer.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "framework/program/lifetime.h"
#include "framework/program/program.h"
#include "framework/program/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/program/test_ops.h"
#include "tests/framework/program/two_layers.h"

namespace tessera::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(PrinterTest, EqualBlocksAreFolded) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  Value y = x;
  for (int i = 0; i < 3; ++i) {
    const ProgramBuilder::Scope scope(b, absl::StrCat("block_", i));
    y = Square(b, Product(b, y,
                          Matrix(b, absl::StrCat("b", i, ".w.weight"), kWidth,
                                 kWidth)));
  }
  const Value loss = Total(b, y);
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const Schedule schedule = TrainingSchedule(program, loss);
  const std::vector<StepRow> runs_of_step =
      StepRows(schedule, PlanLifetimes(schedule),
               {.product_flops_per_s = 1e12,
                .vector_flops_per_s = 1e12,
                .bytes_per_s = 1e9});
  ASSERT_EQ(runs_of_step.size(), schedule.runs.size());
  EXPECT_EQ(runs_of_step[5].group, "block_2");
  const std::vector<StepRow> rows = FoldBlocks(runs_of_step);
  EXPECT_EQ(rows[0].group, "block_0..1");
  int64_t runs = 0;
  double flops = 0;
  for (const StepRow& row : rows) {
    runs += row.count;
    if (row.phase == "forward") {
      flops += static_cast<double>(row.count) * row.cost.flops;
    }
  }
  EXPECT_EQ(runs, static_cast<int64_t>(schedule.runs.size()));
  EXPECT_EQ(rows[0].count, 2);  // the last block's output is not kept
  EXPECT_EQ(flops, 3 * 2.0 * kRows * kWidth * kWidth);
  const std::string text = FormatStep(rows);
  EXPECT_THAT(text, HasSubstr("FP32 [6, 8]"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("took us")));
  EXPECT_EQ(StepToJson(rows).size(), rows.size());
  EXPECT_FALSE(StepToJson(rows)[0].contains("measured_us"));
}

TEST(PrinterTest, MicroBatchesDoNotKeepTheirValuesTogether) {
  ProgramBuilder b(CpuTarget());
  const Value x = b.Input("x", {{kRows, kWidth}, at::kFloat});
  const Value loss =
      Total(b, Square(b, Product(b, x, Matrix(b, "w.weight", kWidth, kWidth))));
  b.Output(loss);
  const Program program = std::move(b).Build().value();
  const auto totals = [&](int micro_batches) {
    ScheduleBuilder list(program, micro_batches);
    for (int m = 0; m < list.listed_micro_batches(); ++m) {
      list.Forward(m, loss);
      list.Backward(m);
    }
    const Schedule schedule = std::move(list).Build();
    const std::string text =
        FormatStep(StepRows(schedule, PlanLifetimes(schedule), {}));
    return text.substr(text.find("\nall "));
  };
  EXPECT_THAT(totals(1), ContainsRegex("all +6 .* 196 B "));
  EXPECT_THAT(totals(5), ContainsRegex("all +30 .* 196 B "));
}

// As the slices of Muon's update are.
TEST(PrinterTest, TasksOfOneNameAreARowWithTheirMeanCost) {
  const Built built = TwoLayers();
  ScheduleBuilder list(built.program, /*micro_batches=*/1);
  for (const double flops : {8e6, 2e6}) {
    list.Add({.kind = Task::Kind::kUpdate,
              .name = "matrices",
              .cost = {.flops = flops, .bytes = 1000, .product_flops = flops}},
             Phase::kOptimizer);
  }
  const Schedule schedule = std::move(list).Build();
  const std::vector<StepRow> rows =
      StepRows(schedule, Lifetimes(),
               {.product_flops_per_s = 1e12, .bytes_per_s = 1e12});
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(rows[0].count, 2);
  EXPECT_EQ(rows[0].cost.flops, 5e6);
  EXPECT_EQ(rows[0].cost.product_flops, 5e6);
  ASSERT_TRUE(rows[0].seconds.has_value());
  EXPECT_DOUBLE_EQ(*rows[0].seconds, 5e-6);
}

TEST(PrinterTest, MeasuredTimesAreNextToTheRoofline) {
  std::vector<StepRow> rows;
  for (const double seconds : {3e-6, 5e-6}) {
    rows.push_back({.phase = "forward",
                    .group = absl::StrCat("block_", rows.size()),
                    .name = "w",
                    .kind = "linear",
                    .seconds = 2e-6,
                    .count = 2,
                    .measured_seconds = seconds});
  }
  rows.push_back({.phase = "clip",
                  .name = "norm",
                  .kind = "sum",
                  .seconds = 0,
                  .measured_seconds = 4e-6});
  const std::vector<StepRow> folded = FoldBlocks(rows);
  ASSERT_EQ(folded.size(), 2);
  EXPECT_DOUBLE_EQ(*folded[0].measured_seconds, 4e-6);
  const std::string text = FormatStep(folded);
  EXPECT_THAT(text, HasSubstr("2.0      4.0   2.00"));
  EXPECT_THAT(text, ContainsRegex("linear +4 .* 8.0 +16.0 +2.00\n"));
  EXPECT_THAT(text, ContainsRegex("all +5 .* 8.0 +20.0 +2.50\n"));
  const auto json = StepToJson(folded);
  EXPECT_DOUBLE_EQ(json[0]["measured_us"], 4);
  EXPECT_DOUBLE_EQ(json[0]["measured_to_roofline"], 2);
  EXPECT_TRUE(json[1]["measured_to_roofline"].is_null());

  rows[1].measured_seconds.reset();
  EXPECT_EQ(FoldBlocks(rows)[0].measured_seconds, std::nullopt);
}

TEST(PrinterTest, AFoldedTimeIsTheMeanOfAllBlocks) {
  std::vector<StepRow> rows;
  for (const double seconds : {3e-6, 5e-6, 10e-6}) {
    rows.push_back({.phase = "forward",
                    .group = absl::StrCat("block_", rows.size()),
                    .name = "w",
                    .measured_seconds = seconds});
  }
  const std::vector<StepRow> folded = FoldBlocks(rows);
  ASSERT_EQ(folded.size(), 1);
  EXPECT_EQ(folded[0].group, "block_0..2");
  EXPECT_DOUBLE_EQ(*folded[0].measured_seconds, 6e-6);
}

}  // namespace
}  // namespace tessera::testing
