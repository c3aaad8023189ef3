#include "framework/observe/report/html_page.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHostile[] = "</script><img src=x onerror=alert(1)>\"'&";

TEST(HtmlPageTest, EscapesEveryText) {
  const Chart chart{
      .title = kHostile,
      .x_title = kHostile,
      .y_title = kHostile,
      .categories = {kHostile},
      .series = {
          {.name = kHostile, .points = {{1, 2, kHostile}}, .values = {1}}}};
  const HtmlTable table{
      .title = kHostile, .columns = {kHostile}, .rows = {{{kHostile, 0.5}}}};
  const std::string plain = RenderHtmlPage({});
  const std::string page =
      RenderHtmlPage({.title = kHostile,
                      .subtitle = kHostile,
                      .sections = {{.title = kHostile,
                                    .paragraphs = {kHostile},
                                    .headlines = {{kHostile, kHostile}},
                                    .charts = {chart},
                                    .tables = {table},
                                    .folded_text = kHostile}}});
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos;
         at = text.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count(page, "</script"), count(plain, "</script"));
  EXPECT_THAT(page, HasSubstr("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;"));
  EXPECT_THAT(page, HasSubstr("\\u003c/script\\u003e\\u003cimg"));
}

TEST(HtmlPageTest, NamesInTablesBreakBetweenTheirParts) {
  const std::string page = RenderHtmlPage(
      {.sections = {{.tables = {{.columns = {"op", "a/b"},
                                 .rows = {{{"block_3/ffn::w<3>"}, {"1/2"}}},
                                 .note = "below"}}}}});
  EXPECT_THAT(page,
              HasSubstr(">block_<wbr>3/<wbr>ffn::<wbr>w&lt;<wbr>3&gt;</td>"
                        "<td class=\"number\">1/2</td>"));
  EXPECT_THAT(page, HasSubstr("</table></div>\n<p>below</p>"));
  // Nothing else may break a name.
  EXPECT_THAT(page, HasSubstr(".long { overflow-wrap: break-word;"));
}

// A text that looks like a placeholder stays a text.
TEST(HtmlPageTest, FillsThePlaceholdersOnce) {
  const std::string page = RenderHtmlPage({.title = "{{CHARTS}}"});
  EXPECT_THAT(page, HasSubstr("<h1>{{CHARTS}}</h1>"));
  EXPECT_THAT(page, Not(HasSubstr("{{BODY}}")));
  EXPECT_THAT(page, HasSubstr("Chart.js v3"));
}

// In "index" mode a tooltip shows points of one place in the lists, whose steps
// may differ.
TEST(HtmlPageTest, TooltipsOfLinesPairPointsByTheirStep) {
  EXPECT_THAT(RenderHtmlPage({.title = "a page"}),
              HasSubstr("curves ? {mode: chart.kind === \"line\" ? \"nearest\" "
                        ": \"index\", axis: \"x\""));
}

TEST(HtmlPageTest, LoadsNothing) {
  const std::string page = RenderHtmlPage({.title = "a page"});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("src=\"")));
}

TEST(HtmlPageTest, WhatIsNotFiniteIsAGap) {
  const std::string page = RenderHtmlPage(
      {.sections = {
           {.charts = {{.series = {{.points = {{1, NAN}, {2, 3.5}}}}}}}}});
  EXPECT_THAT(page, HasSubstr(R"({"x":1.0,"y":null},{"x":2.0,"y":3.5})"));
}

TEST(HtmlPageTest, ThinningKeepsSpikesAndOrder) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 5000; ++i) {
    points.push_back({static_cast<double>(i), i == 1234 ? 100.0 : 1.0});
  }
  const std::vector<ChartPoint> thin = ThinPoints(points, 100);
  EXPECT_LE(thin.size(), 100);
  bool has_spike = false;
  for (size_t i = 0; i < thin.size(); ++i) {
    has_spike = has_spike || thin[i].y == 100.0;
    if (i > 0) {
      EXPECT_LT(thin[i - 1].x, thin[i].x);
    }
  }
  EXPECT_TRUE(has_spike);
  EXPECT_EQ(ThinPoints(points, 5000).size(), 5000);
}

}  // namespace
}  // namespace tessera
