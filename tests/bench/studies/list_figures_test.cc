// Plots and tables of the elements of a list, and columns that compare cells.

#include <string>
#include <utility>
#include <vector>

#include "bench/studies/study_tables.h"
#include "framework/base/text_proto.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kStudy[] = R"pb(
  axis { name: "size" }
  plot {
    title: "Roofline"
    list: "work"
    limit: "roof"
    point_name: "name"
    x: "intensity"
    x_title: "FLOP per byte"
    y: "speed"
    y_title: "TFLOP/s"
    series: "size"
    log_x: true
  }
  table {
    list: "work"
    column { title: "work" figure: "name" }
    column { title: "speed" figure: "speed" }
  }
)pb";

Json Record(const std::string& size, double speed) {
  return {{"type", "cell"},
          {"cell", {{"size", size}}},
          {"status", "OK"},
          {"figures",
           {{"work",
             {{{"name", "w13"}, {"intensity", 100}, {"speed", speed}},
              {{"name", "copy"}, {"speed", 1}},
              {{"name", "qkv"}, {"intensity", 50}, {"speed", 2}}}},
            {"roof",
             {{{"intensity", 1}, {"speed", 4}},
              {{"intensity", 200}, {"speed", speed}}}}}}};
}

// A study with axes "size" (small, large) and "policy" (A, B). There is no
// result of its last cell.
std::vector<Chart> ChartsOf(const std::string& plot) {
  Study study;
  EXPECT_TRUE(
      MergeTextProto("axis { name: 'size' } axis { name: 'policy' } " + plot,
                     "study", &study.config)
          .ok());
  std::vector<Json> records;
  double figure = 0;
  for (const char* size : {"small", "large"}) {
    for (const char* policy : {"A", "B"}) {
      study.cells.push_back({.labels = {{"size", size}, {"policy", policy}}});
      figure += 1;
      records.push_back(
          {{"type", "cell"},
           {"cell", {{"size", size}, {"policy", policy}}},
           {"status", "OK"},
           {"figures",
            {{"ms", figure}, {"gib", 10 * figure}, {"layers", 12}}}});
    }
  }
  records.pop_back();
  return StudyCharts(study, RecordsOf(study, records));
}

TEST(PlotTest, AnAxisWithoutNumbersMakesBarsSideBySide) {
  const std::vector<Chart> charts =
      ChartsOf("plot { x: 'size' y: 'ms' series: 'policy' log_y: true }");
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].kind, Chart::Kind::kGroupedBars);
  EXPECT_EQ(charts[0].x_title, "size");
  EXPECT_EQ(charts[0].categories, (std::vector<std::string>{"small", "large"}));
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[0].name, "A");
  EXPECT_EQ(charts[0].series[0].values, (std::vector<double>{1, 3}));
  EXPECT_EQ(charts[0].series[1].values, (std::vector<double>{2}));
}

TEST(PlotTest, AnAxisThatIsLeftOutMakesLines) {
  const std::vector<Chart> charts = ChartsOf("plot { x: 'size' y: 'ms' }");
  ASSERT_EQ(charts.size(), 1u);
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[0].name, "A");
  EXPECT_EQ(charts[0].series[0].values, (std::vector<double>{1, 3}));
  EXPECT_EQ(charts[0].series[1].name, "B");
}

TEST(PlotTest, AFigureAgainstAnotherIsAPointForEachCell) {
  const std::vector<Chart> charts =
      ChartsOf("plot { x: 'gib' x_title: 'GiB' y: 'ms' series: 'policy' }");
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].kind, Chart::Kind::kScatter);
  EXPECT_EQ(charts[0].x_title, "GiB");
  ASSERT_EQ(charts[0].series.size(), 2u);
  ASSERT_EQ(charts[0].series[0].points.size(), 2u);
  EXPECT_EQ(charts[0].series[0].points[1].x, 30);
  EXPECT_EQ(charts[0].series[0].points[1].y, 3);
  EXPECT_EQ(charts[0].series[0].points[1].label, "size=large policy=A");
}

TEST(PlotTest, CellsWithTheSameFigureAreAPointEach) {
  const std::vector<Chart> charts =
      ChartsOf("plot { x: 'layers' x_title: 'layers' y: 'ms' }");
  ASSERT_EQ(charts.size(), 1u);
  ASSERT_EQ(charts[0].series.size(), 1u);
  EXPECT_EQ(charts[0].series[0].points.size(), 3u);
}

TEST(PlotTest, AnAxisOfNumbersAndWordsMakesBars) {
  Study study;
  ASSERT_TRUE(
      MergeTextProto("axis { name: 'window' } plot { x: 'window' y: 'ms' }",
                     "study", &study.config)
          .ok());
  std::vector<Json> records;
  for (const char* window : {"128", "256", "all"}) {
    study.cells.push_back({.labels = {{"window", window}}});
    records.push_back({{"type", "cell"},
                       {"cell", {{"window", window}}},
                       {"status", "OK"},
                       {"figures", {{"ms", 2}}}});
  }
  const std::vector<Chart> charts =
      StudyCharts(study, RecordsOf(study, records));
  ASSERT_EQ(charts.size(), 1u);
  EXPECT_EQ(charts[0].kind, Chart::Kind::kGroupedBars);
  EXPECT_EQ(charts[0].categories,
            (std::vector<std::string>{"128", "256", "all"}));
}

TEST(StudyChartsTest, ShowTheTimelinesThatCellsRecorded) {
  Study study;
  study.cells.push_back({.labels = {{"size", "small"}}});
  const std::vector<Json> records = {
      {{"type", "cell"},
       {"cell", {{"size", "small"}}},
       {"status", "OK"},
       {"figures",
        {{"timelines",
          {{"a step",
            {{"columns", {"us", "parameters", "activations"}},
             {"points", {{0, 2048, 0}, {1000, 2048, 4096}}}}}}}}}}};
  const std::vector<Chart> charts =
      StudyCharts(study, RecordsOf(study, records));
  ASSERT_EQ(charts.size(), 2u);
  EXPECT_EQ(charts[0].title, "Memory during a step: size=small");
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[1].points[1].x, 1);
  EXPECT_EQ(charts[0].series[1].points[1].y, 4);
  EXPECT_EQ(charts[1].title, "What a step allocates and frees: size=small");
  ASSERT_EQ(charts[1].series.size(), 1u);
  EXPECT_EQ(charts[1].series[0].name, "activations");
}

TEST(ListTest, AScatterWithTheFirstCellsLimitAndATable) {
  Study study;
  ASSERT_TRUE(MergeTextProto(kStudy, "study", &study.config).ok());
  std::vector<Json> records;
  for (const char* size : {"small", "large", "missing"}) {
    study.cells.push_back({.labels = {{"size", size}}});
  }
  records.push_back(Record("small", 5));
  records.push_back(Record("large", 7));
  records.push_back(
      {{"type", "cell"}, {"cell", {{"size", "missing"}}}, {"status", "OOM"}});
  const std::vector<Chart> charts =
      StudyCharts(study, RecordsOf(study, records));
  ASSERT_EQ(charts.size(), 1u);
  const Chart& chart = charts[0];
  EXPECT_EQ(chart.kind, Chart::Kind::kScatter);
  EXPECT_EQ(chart.title, "Roofline");
  EXPECT_EQ(chart.x_title, "FLOP per byte");
  EXPECT_EQ(chart.y_title, "TFLOP/s");
  EXPECT_TRUE(chart.log_x);
  ASSERT_EQ(chart.series.size(), 3u);
  EXPECT_EQ(chart.series[0].name, "small");
  // By x; an element without x has no point.
  ASSERT_EQ(chart.series[0].points.size(), 2u);
  EXPECT_EQ(chart.series[0].points[0].label, "qkv");
  EXPECT_EQ(chart.series[0].points[1].label, "w13");
  EXPECT_EQ(chart.series[0].points[1].y, 5);
  EXPECT_TRUE(chart.series[1].is_limit);
  EXPECT_EQ(chart.series[1].points[1].y, 5);
  EXPECT_EQ(chart.series[2].name, "large");
  EXPECT_EQ(chart.series[2].points[1].y, 7);
  EXPECT_FALSE(chart.series[2].is_limit);

  const std::vector<HtmlTable> tables =
      StudyTables(study, RecordsOf(study, records));
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].columns.size(), 3u);
  // The axis and the name; speed is a number.
  EXPECT_EQ(tables[0].text_columns, 2u);
  EXPECT_EQ(tables[0].rows.size(), 6u);
}

TEST(RelativeTest, ASpeedUpAndTheStepsThatPayForIt) {
  constexpr char kColumns[] = R"pb(
    axis { name: "backend" }
    axis { name: "mode" }
    table {
      column { title: "" figure: "ms" relative_to: "backend=A" }
      column { title: "" figure: "ms" relative_to: "backend=A,mode=E" }
      column { title: "" figure: "ms" relative_to: "backend=A" cost: "once" }
    }
  )pb";
  Study study;
  ASSERT_TRUE(MergeTextProto(kColumns, "study", &study.config).ok());
  std::vector<Json> records;
  const auto add = [&](const char* backend, const char* mode, Json figures) {
    study.cells.push_back({.labels = {{"backend", backend}, {"mode", mode}}});
    records.push_back({{"type", "cell"},
                       {"cell", {{"backend", backend}, {"mode", mode}}},
                       {"status", "OK"},
                       {"figures", std::move(figures)}});
  };
  add("A", "E", {{"ms", 12}});
  add("A", "G", {{"ms", 6}});
  add("B", "E", {{"ms", 8}, {"once", 9}});
  add("B", "G", {{"ms", 6}, {"once", 9}});
  const std::vector<HtmlTable> tables =
      StudyTables(study, RecordsOf(study, records));
  ASSERT_EQ(tables.size(), 1u);
  std::vector<std::vector<std::string>> texts;
  for (const auto& row : tables[0].rows) {
    texts.push_back({row[2].text, row[3].text, row[4].text});
  }
  EXPECT_EQ(texts,
            (std::vector<std::vector<std::string>>{{"1.00", "1.00", "n/a"},
                                                   {"1.00", "2.00", "n/a"},
                                                   {"1.50", "1.50", "3.00"},
                                                   {"1.00", "2.00", "n/a"}}));
}

}  // namespace
}  // namespace tessera
