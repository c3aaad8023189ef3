#include "framework/observe/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "framework/observe/memory_record.h"
#include "framework/observe/report/comparison_page.h"
#include "framework/observe/report/figure_comparison.h"
#include "framework/observe/report/html_page.h"
#include "framework/observe/report/memory_sections.h"
#include "framework/observe/report/op_roofline.h"
#include "framework/observe/report/run_records.h"
#include "framework/observe/report/spread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json Step(int64_t step, double ms) {
  return {{"step", step},
          {"loss", 5.0},
          {"step_ms", ms},
          {"phases_ms",
           {{"forward", 2.0},
            {"forward/block_0", 0.5},
            {"forward/block_0/ffn", 0.25},
            {"forward/block_1/ffn", 0.5},
            {"checkpoint", 70.0}}}};
}

RunRecords RunOf(double ms) {
  RunRecords run{.name = "r", .header = {{"type", "run"}}};
  for (int i = 1; i <= 20; ++i) {
    run.steps.push_back(Step(i, ms + 0.01 * (i % 3)));
  }
  return run;
}

std::vector<std::string> Titles(const HtmlPage& page) {
  std::vector<std::string> titles;
  for (const HtmlSection& section : page.sections) {
    titles.push_back(section.title);
  }
  return titles;
}

const Chart* FindChart(const HtmlPage& page, const std::string& title) {
  for (const HtmlSection& section : page.sections) {
    for (const Chart& chart : section.charts) {
      if (chart.title == title) return &chart;
    }
  }
  return nullptr;
}

TEST(RunPageTest, HasOnlySectionsWithData) {
  RunRecords empty{.header = {{"type", "run"}}};
  EXPECT_THAT(Titles(RunPage(empty)), ElementsAre("Summary"));
  RunRecords run = RunOf(3);
  EXPECT_THAT(Titles(RunPage(run)),
              ElementsAre("Summary", "Training", "Where the step's time goes"));
  run.profile = {{"step", {{"kernels", {{{"name", "k"}, {"share", 1}}}}}},
                 {"idle", {{"summary", "all of it"}}}};
  run.steps.back()["gpu"] = {{"power_w", 600}};
  EXPECT_THAT(Titles(RunPage(run)),
              ElementsAre("Summary", "Training", "Where the step's time goes",
                          "GPU", "Traced steps", "Kernels", "Idle time"));
}

TEST(RunPageTest, PhasesAddUpToTheStep) {
  const HtmlPage page = RunPage(RunOf(3));
  const Chart* const phases = FindChart(page, "Step time by phase");
  ASSERT_NE(phases, nullptr);
  ASSERT_EQ(phases->series.size(), 2);
  EXPECT_EQ(phases->series[0].name, "forward");
  EXPECT_EQ(phases->series[0].values[0], 2);
  EXPECT_NEAR(phases->series[1].values[0], 1.02, 1e-9);
  // The first record holds the first step.
  ASSERT_EQ(phases->categories.size(), 19);
  EXPECT_EQ(phases->categories[0], "2");
  const Chart* const blocks = FindChart(page, "Blocks at step 20");
  ASSERT_NE(blocks, nullptr);
  EXPECT_THAT(blocks->categories, ElementsAre("0", "1"));
  EXPECT_THAT(blocks->series[0].values, ElementsAre(0.25, 0.5));
}

// 100 bytes of parameters, `activations` and 5 of rounding.
Json Breakdown(int64_t activations) {
  return {{"allocated", activations + 105},
          {"reserved", activations + 205},
          {"parameters", 100},
          {"activations", activations},
          {"slack", 5},
          {"fragmentation", 100}};
}

Json MemoryRecordOf(int64_t activations) {
  Json record = {
      {"step", 20},
      {"phases", {{"forward", {{"allocated", 90}, {"peak", 150}}}}},
      {"peak", Breakdown(activations)},
      {"end", Breakdown(0)},
      {"saved",
       {{"bytes", 70},
        {"of",
         {{"block_0", {{"ffn/w1", 10}, {"ffn/w2", 30}}},
          {"block_1", {{"ffn/w2", 20}}},
          {"head", {{"lm_head", 7}}},
          {"embedding", {{"embedding", 3}}}}}}},
      {"largest", {{{"bytes", 30}, {"from", "forward/w"}, {"to", ""}}}}};
  record["peak"]["in"] = "forward/block_1/ffn/w2";
  return record;
}

// "name: cell cell" of each row.
std::vector<std::string> Rows(const HtmlTable& table) {
  std::vector<std::string> rows;
  for (const std::vector<TableCell>& cells : table.rows) {
    std::string row = absl::StrCat(cells[0].text, ":");
    for (size_t i = 1; i < cells.size(); ++i) {
      absl::StrAppend(&row, " ", cells[i].text.empty() ? "-" : cells[i].text);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

TEST(MemorySectionTest, CategoriesAddUpToTheAllocatorsFigures) {
  RunRecords run = RunOf(3);
  run.memory = {MemoryRecordOf(300)};
  const HtmlSection section = MemorySection(run);
  EXPECT_THAT(section.paragraphs[0],
              HasSubstr("in forward/block_1/ffn/w2: 405 B"));
  ASSERT_EQ(section.tables.size(), 4);
  EXPECT_THAT(Rows(section.tables[0]), ElementsAre("forward: 150 B 90 B 0 B"));
  EXPECT_THAT(Rows(section.tables[1]),
              ElementsAre("parameters: 100 B 24.7 % 100 B",
                          "activations: 300 B 74.1 % 0 B",
                          "rounding by the allocator: 5 B 1.2 % 5 B",
                          "allocated: 405 B - 105 B",
                          "reserved, but not allocated: 100 B - 100 B",
                          "reserved: 505 B - 205 B"));
  EXPECT_THAT(
      Rows(section.tables[2]),
      ElementsAre("block_*/ffn/w2: 50 B 71.4 % 2",
                  "block_*/ffn/w1: 10 B 14.3 % 1", "head/lm_head: 7 B 10.0 % -",
                  "embedding: 3 B 4.3 % -", "all: 70 B - -"));
  EXPECT_THAT(Rows(section.tables[3]),
              ElementsAre("forward/w: after the step - 30 B n/a"));
}

TEST(MemorySectionTest, TheTimelineKeepsItsPeakAndOrder) {
  constexpr double kGiB = 1 << 30;
  Json points = Json::array();
  for (int i = 0; i < 3000; ++i) {  // two in each microsecond
    points.push_back({i / 2, kGiB, i == 1001 ? 3 * kGiB : 0});
  }
  RunRecords run = RunOf(3);
  run.memory = {MemoryRecordOf(300), MemoryRecordOf(300)};
  run.memory[0]["timeline"] = {{"columns", {"us", "parameters", "activations"}},
                               {"points", points}};
  const HtmlSection section = MemorySection(run);
  const Chart &all = section.charts[0], &changes = section.charts[1];
  ASSERT_EQ(all.series.size(), 2);
  EXPECT_LE(all.series[0].points.size(), 400);
  EXPECT_GT(all.series[0].points.size(), 300);
  double most = 0;
  for (size_t i = 0; i < all.series[1].points.size(); ++i) {
    EXPECT_EQ(all.series[0].points[i].y, 1);
    most = std::max(most, *all.series[1].points[i].y);
    if (i > 0) {
      EXPECT_LT(all.series[1].points[i - 1].x, all.series[1].points[i].x);
    }
  }
  EXPECT_EQ(most, 3);
  // Parameters do not change within the step.
  ASSERT_EQ(changes.series.size(), 1);
  EXPECT_EQ(changes.series[0].name, "activations");
  EXPECT_EQ(changes.series[0].color, all.series[1].color);
}

TEST(MemorySectionTest, ComparesPeaksByCategory) {
  RunRecords a = RunOf(3), b = RunOf(3);
  EXPECT_THAT(MemoryComparison(a, b).tables, ::testing::IsEmpty());
  a.memory = {MemoryRecordOf(300)};
  EXPECT_THAT(MemoryComparison(a, b).tables, ::testing::IsEmpty());
  b.memory = {MemoryRecordOf(250)};
  const HtmlPage page = ComparisonPage(a, b);
  EXPECT_EQ(Titles(page).back(), "Memory");
  const std::vector<HtmlTable>& tables = page.sections.back().tables;
  ASSERT_EQ(tables.size(), 2);
  EXPECT_THAT(Rows(tables[0]),
              ElementsAre("parameters: 100 B 100 B 0 B",
                          "activations: 300 B 250 B -50 B",
                          "rounding by the allocator: 5 B 5 B 0 B",
                          "allocated: 405 B 355 B -50 B",
                          "reserved, but not allocated: 100 B 100 B 0 B",
                          "reserved: 505 B 455 B -50 B",
                          "saved for backward: 70 B 70 B 0 B"));
  EXPECT_THAT(Rows(tables[1]), ElementsAre("forward: 150 B 150 B 0 B"));
}

TEST(FigureComparisonTest, NoiseFollowsTheSpread) {
  EXPECT_EQ(NoiseOfMedians({1, 2}, {1, 2, 3}), std::nullopt);
  EXPECT_EQ(NoiseOfMedians({5, 5, 5}, {6, 6, 6}), 0);
  // Deviations 0, 1, 1: their median is 1, twice.
  EXPECT_NEAR(*NoiseOfMedians({1, 2, 3}, {2, 3, 4}),
              3 * 1.2533 * 1.4826 * std::sqrt(2.0 / 3), 1e-9);
  // Either run may be the noisy one.
  for (const bool first : {false, true}) {
    const std::vector<double> steady = {5, 5, 5}, noisy = {1, 2, 3};
    EXPECT_NEAR(*NoiseOfMedians(first ? noisy : steady, first ? steady : noisy),
                3 * 1.2533 * 1.4826 / std::sqrt(3.0), 1e-9);
  }
}

TEST(FigureComparisonTest, TellsAChangeFromNoise) {
  const auto find = [](const std::vector<FigureComparison>& figures,
                       const std::string& path) -> FigureComparison {
    for (const FigureComparison& figure : figures) {
      if (figure.path == path) return figure;
    }
    ADD_FAILURE() << path;
    return {};
  };
  const auto figures = CompareFigures(RunOf(3), RunOf(2.7));
  EXPECT_TRUE(find(figures, "step_ms").exceeds_noise());
  EXPECT_NEAR(*find(figures, "step_ms").ratio(), 0.9, 1e-3);
  EXPECT_FALSE(find(figures, "loss").exceeds_noise());
  EXPECT_EQ(find(figures, "phases_ms.forward/blocks/ffn").a, 0.75);
  EXPECT_FALSE(
      find(CompareFigures(RunOf(3), RunOf(3.001)), "step_ms").exceeds_noise());
}

TEST(FigureComparisonTest, ListsKernelsByTheirChange) {
  const auto kernel = [](const char* name, double ms) -> Json {
    return {{"name", name}, {"ms", ms}, {"instances", 2}};
  };
  RunRecords a, b;
  a.profile["step"]["kernels"] = {kernel("same", 1), kernel("gone", 2)};
  b.profile["step"]["kernels"] = {kernel("same", 1.5), kernel("added", 3)};
  const std::vector<KernelComparison> kernels = CompareKernels(a, b);
  ASSERT_EQ(kernels.size(), 3);
  EXPECT_EQ(kernels[0].name, "added");
  EXPECT_FALSE(kernels[0].a_ms.has_value());
  EXPECT_EQ(kernels[1].name, "gone");
  EXPECT_FALSE(kernels[1].b_ms.has_value());
  EXPECT_EQ(kernels[2].change_ms(), 0.5);
  a.header = b.header = {{"type", "run"}};
  const HtmlPage page = ComparisonPage(a, b);
  EXPECT_EQ(Titles(page).back(), "Kernels");
  EXPECT_EQ(page.sections.back().tables[0].rows[1][1].text, "gone");
}

TEST(KernelTableTest, WhatIsNotKnownIsNotGuessed) {
  RunRecords run = RunOf(3);
  Json kernel = {
      {"name", "gemm"},       {"class", "GEMM"},    {"ms", 2},
      {"share", 1},           {"tflop_per_s", 500}, {"gb_per_s", nullptr},
      {"roofline_share", 0.5}};
  run.profile["step"]["kernels"] = {kernel, {{"name", "fill"}}};
  run.profile["step"]["rates"] = {{"product_tflop_per_s", 1000},
                                  {"gb_per_s", nullptr}};
  const auto kernels = [&] {
    const HtmlPage page = RunPage(run);
    return page.sections[page.sections.size() - 1];
  };
  EXPECT_THAT(Rows(kernels().tables[0]),
              ElementsAre("gemm: GEMM 100.0 % 2.000 n/a n/a 500.0 n/a 50.0 %",
                          "fill: - 0.0 % n/a n/a n/a n/a n/a n/a"));
  EXPECT_THAT(kernels().paragraphs[0], HasSubstr("peaks are not known"));
  run.profile["step"]["rates"]["gb_per_s"] = 4800;
  EXPECT_THAT(kernels().paragraphs[0],
              HasSubstr("1000 TFLOP/s in matrix products and 4800 GB/s"));
}

TEST(KernelTableTest, HasCountersIfKernelsWereCounted) {
  RunRecords run = RunOf(3);
  Json gemm = {{"name", "gemm"},        {"ms", 2},
               {"mean_us", 500},        {"flops", 4e12},
               {"tensor_pipe_pct", 80}, {"dram_bytes", 1e9},
               {"l2_hit_pct", nullptr}, {"flop_per_dram_byte", 1000}};
  Json& step = run.profile["step"];
  step["kernels"] = {gemm, {{"name", "fill"}, {"ms", 1}}};
  step["ops"] = {{{"phase", "forward"},
                  {"op", "w"},
                  {"ms", 2},
                  {"flops", 4e12},
                  {"bytes", 1e9}}};
  const auto kernels = [&] {
    const HtmlPage page = RunPage(run);
    return page.sections[page.sections.size() - 2];
  };
  step["counters"] = nullptr;  // off
  EXPECT_EQ(kernels().tables.size(), 1);
  EXPECT_EQ(kernels().paragraphs.size(), 1);
  step["counters"] = {{"not_counted", "no permission"}};
  EXPECT_EQ(kernels().tables.size(), 1);
  EXPECT_EQ(kernels().paragraphs[1], "Counters: none: no permission");
  step["counters"] = {{"step", 2}};
  ASSERT_EQ(kernels().tables.size(), 2);
  EXPECT_THAT(kernels().paragraphs[1], HasSubstr("in step 2"));
  EXPECT_THAT(Rows(kernels().tables[1]),
              ElementsAre("gemm: 80.00 1000 2000 n/a 1000"));
  const HtmlPage page = RunPage(run);
  const Chart* const roofline = FindChart(page, "Roofline of the ops");
  ASSERT_NE(roofline, nullptr);
  ASSERT_EQ(roofline->series.size(), 2);
  EXPECT_EQ(roofline->series[1].name, "kernels, by DRAM bytes");
  EXPECT_DOUBLE_EQ(roofline->series[1].points[0].x, 1000);
  EXPECT_DOUBLE_EQ(*roofline->series[1].points[0].y, 2000);
}

TEST(TraceCostTest, AStepThatIsCountedBeforeTheTraceIsNeither) {
  RunRecords run = RunOf(3);
  run.profile["step"] = {{"wall_ms", 4.5}, {"steps", 5}};
  run.profile_first_step = 10;
  for (int i = 0; i < 20; ++i) {
    run.steps[i]["step_ms"] = i == 1 ? 500 : i < 9 ? 3 : 3.3;
    run.steps[i]["traced_steps"] = i == 1 || i == 9 ? 1 : 0;
  }
  const HtmlSection section = RunPage(run).sections.back();
  ASSERT_EQ(section.tables.size(), 1);
  EXPECT_THAT(Rows(section.tables[0]),
              ElementsAre("before the trace: 3.000 - 4 records",
                          "traced: 4.500 +50.0 % 5 steps",
                          "after the trace: 3.300 +10.0 % 10 records"));
}

TEST(TraceCostTest, ComparesStepsBeforeInAndAfterTheTrace) {
  RunRecords run = RunOf(3);
  run.profile["step"] = {{"wall_ms", 4.5}, {"steps", 5}};
  const auto tables = [&] { return RunPage(run).sections.back().tables; };
  EXPECT_THAT(tables(), ::testing::IsEmpty());  // an older log
  for (int i = 0; i < 20; ++i) {
    run.steps[i]["step_ms"] = i < 4 ? 20 : i < 8 ? 3 : i < 10 ? 10 : 3.3;
    run.steps[i]["traced_steps"] = i == 8 ? 1 : i == 9 ? 6 : 0;
  }
  ASSERT_EQ(tables().size(), 1);
  EXPECT_THAT(Rows(tables()[0]),
              ElementsAre("before the trace: 3.000 - 4 records",
                          "traced: 4.500 +50.0 % 5 steps",
                          "after the trace: 3.300 +10.0 % 10 records"));
  for (Json& record : run.steps) record["traced_steps"] = 1;
  EXPECT_THAT(tables(), ::testing::IsEmpty());
}

// One record, or one traced step, may be an outlier.
TEST(TraceCostTest, NeedsSeveralRecords) {
  RunRecords run = RunOf(3);
  run.profile["step"] = {{"wall_ms", 4.5}, {"steps", 5}};
  const auto table = [&](int traced, size_t records) {
    RunRecords few = run;
    few.steps.resize(records);
    for (size_t i = 0; i < few.steps.size(); ++i) {
      few.steps[i]["step_ms"] = 3;
      few.steps[i]["traced_steps"] = i == traced ? 5 : 0;
    }
    return RunPage(few).sections.back().tables.at(0);
  };
  EXPECT_EQ(table(2, 20).columns[2], "against after the trace");
  EXPECT_THAT(Rows(table(2, 20)),
              ElementsAre("before the trace: 3.000 too few 1 record",
                          "traced: 4.500 +50.0 % 5 steps",
                          "after the trace: 3.000 - 17 records"));
  EXPECT_THAT(Rows(table(2, 5)),
              ElementsAre("before the trace: 3.000 too few 1 record",
                          "traced: 4.500 too few 5 steps",
                          "after the trace: 3.000 too few 2 records"));
  run.profile["step"]["steps"] = 1;
  EXPECT_THAT(Rows(table(10, 20)),
              ElementsAre("before the trace: 3.000 - 5 records",
                          "traced: 4.500 too few 1 step",
                          "after the trace: 3.000 +0.0 % 9 records"));
}

TEST(SpreadTest, IsAboveATenthOfTheMedian) {
  EXPECT_FALSE(IsSpreadOut({1}));
  EXPECT_FALSE(IsSpreadOut({9.1, 10, 10.9}));
  EXPECT_TRUE(IsSpreadOut({8.9, 10, 11.1}));
  EXPECT_TRUE(IsSpreadOut({-8.9, -10, -11.1}));
}

TEST(SpreadTest, PagesMarkFiguresThatAreSpreadOut) {
  const auto headline = [](const HtmlSection& section,
                           const std::string& name) -> std::string {
    for (const Headline& one : section.headlines) {
      if (one.name == name) return one.value;
    }
    return "none";
  };
  const RunRecords steady = RunOf(3);
  RunRecords jumpy = RunOf(3);
  for (size_t i = 0; i < jumpy.steps.size(); ++i) {
    jumpy.steps[i]["step_ms"] = i % 2 == 0 ? 3 : 4;
    jumpy.steps[i]["tokens_per_s"] = 100;
  }
  const HtmlSection summary = RunPage(jumpy).sections[0];
  EXPECT_EQ(headline(summary, "step time"), "3.500 ms †");
  EXPECT_EQ(headline(summary, "throughput"), "100.0 tokens/s");
  EXPECT_EQ(summary.headlines_note, kSpreadNote);
  EXPECT_EQ(RunPage(steady).sections[0].headlines_note, "");
  const HtmlTable steps = ComparisonPage(steady, jumpy).sections[0].tables[0];
  EXPECT_EQ(steps.note, kSpreadNote);
  EXPECT_THAT(Rows(steps),
              ::testing::Contains(
                  "step_ms: within noise 1.163 ± 29.3 % 3.010 3.500 †"));
}

TEST(ComparisonPageTest, NoiseAboveTheFigureIsNotAPercentage) {
  RunRecords run = RunOf(3);
  for (size_t i = 0; i < run.steps.size(); ++i) {
    run.steps[i]["loss"] = i % 3 == 0 ? 1e-3 : i % 3 == 1 ? -5 : 5;
  }
  const HtmlTable steps = ComparisonPage(run, run).sections[0].tables[0];
  EXPECT_THAT(steps.columns,
              ElementsAre("figure", "", "B / A", "noise", "A", "B"));
  EXPECT_EQ(steps.rows[0][0].text, "loss");
  EXPECT_EQ(steps.rows[0][3].text, "> 100 %");
}

TEST(ComparisonPageTest, ShowsEveryValidationSetOfBothRuns) {
  const auto evaluations = [](double loss) {
    return std::vector<Json>{
        {{"step", 10}, {"loss", loss}, {"bits_per_byte", loss / 3}},
        {{"step", 20}, {"loss", loss / 2}, {"bits_per_byte", loss / 6}}};
  };
  RunRecords a = RunOf(3), b = RunOf(4);
  a.evaluations = b.evaluations = evaluations(5);
  a.validation_sets["code"] = evaluations(4);
  b.validation_sets["code"] = evaluations(3);
  b.validation_sets["prose"] = evaluations(2);
  const HtmlPage page = ComparisonPage(a, b);
  const auto names = [&](const std::string& title) {
    std::vector<std::string> names;
    for (const ChartSeries& series : FindChart(page, title)->series) {
      names.push_back(series.name);
    }
    return names;
  };
  EXPECT_THAT(names("Loss"),
              ElementsAre("A", "B", "A, validation", "A, code", "B, validation",
                          "B, code", "B, prose"));
  EXPECT_THAT(names("Loss per byte of text"),
              ElementsAre("A, validation", "A, code", "B, validation",
                          "B, code", "B, prose"));
}

TEST(MemorySectionTest, UnitsFitTheRun) {
  RunRecords run = RunOf(3);
  run.memory = {MemoryRecordOf(300 << 10)};
  run.memory[0]["timeline"] = {{"columns", {"us", "parameters"}},
                               {"points", {{0, 2 << 20}, {5, 3 << 20}}}};
  for (Json& step : run.steps) step["peak_gib"] = 1.5 / 1024;
  const HtmlSection section = MemorySection(run);
  ASSERT_EQ(section.charts.size(), 4);
  EXPECT_EQ(section.charts[0].title, "Memory during step 20");
  EXPECT_EQ(section.charts[0].y_title, "MiB");
  EXPECT_EQ(section.charts[0].series[0].points[1].y, 3);
  EXPECT_EQ(section.charts[1].y_title, "MiB");
  EXPECT_EQ(section.charts[1].series[0].points[1].y, 1);
  EXPECT_EQ(section.charts[2].title, "Saved for backward");
  EXPECT_EQ(section.charts[2].y_title, "B");
  EXPECT_EQ(section.charts[2].series[0].values[0], 10);
  EXPECT_EQ(section.charts[3].y_title, "MiB");
  EXPECT_EQ(section.charts[3].series[0].points[0].y, 1.5);
  EXPECT_THAT(RunPage(run).sections[0].headlines.back().value,
              HasSubstr("1.50 MiB"));
}

// Categories share the numbers of their colors over several charts.
TEST(MemorySectionTest, EachCategoryHasAColor) {
  const std::string page = RenderHtmlPage({});
  size_t themes = 0;
  for (size_t at = page.find("--series:"); at != std::string::npos;
       at = page.find("--series:", at + 1)) {
    const std::string line = page.substr(at, page.find(';', at) - at);
    const std::vector<std::string> colors = absl::StrSplit(line, " #");
    EXPECT_GE(colors.size() - 1, std::size(kMemoryCategoryNames)) << line;
    EXPECT_EQ(std::set<std::string>(colors.begin(), colors.end()).size(),
              colors.size());
    ++themes;
  }
  EXPECT_EQ(themes, 2);
}

TEST(OpRooflineTest, FoldsBlocksAndFindsTheRoofs) {
  const auto op = [](const char* part, double flops, double bytes,
                     double roofline_ms) -> Json {
    return {{"phase", "forward"},
            {"part", part},
            {"op", "w"},
            {"ms", 2},
            {"flops", flops},
            {"bytes", bytes},
            {"roofline_ms", roofline_ms}};
  };
  // 1000 TFLOP/s and 4 TB/s: the products are bound by the first, the norm by
  // the second.
  const std::vector<FoldedOp> ops =
      FoldOps({op("block_0/ffn", 1e12, 1e9, 1), op("block_1/ffn", 1e12, 1e9, 1),
               op("norm", 1e9, 4e9, 1)});
  ASSERT_EQ(ops.size(), 2);
  EXPECT_EQ(ops[0].Name(), "forward/block_*/ffn/w");
  EXPECT_EQ(ops[0].ms, 4);
  EXPECT_NEAR(*ops[0].tflop_per_s(), 500, 1e-9);
  const std::optional<Chart> chart =
      RooflineChart(ops, {{"product_tflop_per_s", 1000}, {"gb_per_s", 4000}});
  ASSERT_TRUE(chart.has_value());
  const ChartSeries& roof = chart->series.back();
  ASSERT_TRUE(roof.is_limit);
  ASSERT_EQ(roof.points.size(), 3);
  EXPECT_NEAR(roof.points[1].x, 250, 1e-9);
  EXPECT_NEAR(*roof.points[1].y, 1000, 1e-9);
  EXPECT_NEAR(*roof.points[0].y, roof.points[0].x * 4, 1e-9);
  const std::optional<Chart> without_peaks = RooflineChart(ops, {});
  ASSERT_TRUE(without_peaks.has_value());
  EXPECT_EQ(without_peaks->series.size(), chart->series.size() - 1);
}

}  // namespace
}  // namespace tessera
