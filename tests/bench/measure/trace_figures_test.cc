#include "bench/measure/trace_figures.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json Op(const char* phase, const char* kind, double ms, double flops) {
  return {{"phase", phase}, {"kind", kind}, {"ms", ms}, {"flops", flops}};
}

// Two layers, in two steps.
Json Profile() {
  return {{"step",
           {{"steps", 2},
            {"classes", {{{"name", "GEMM"}, {"ms", 3.0}, {"share", 0.75}}}},
            {"phases", {{{"name", "forward"}, {"ms", 1.0}, {"share", 0.25}}}},
            {"kernels",
             {{{"name", "a"}, {"class", "GEMM"}, {"share", 0.75}},
              {{"name", "b"}, {"class", "norm"}, {"share", 0.006}},
              {{"name", "c"}, {"class", "norm"}, {"share", 0.005}}}},
            {"attention",
             {{{"phase", "forward"},
               {"scores_ms", 2.0},
               {"softmax_ms", 3.0},
               {"values_ms", 4.0},
               {"softmax_to_products", 0.5}},
              {{"phase", "backward"}, {"softmax_to_products", nullptr}}}},
            {"blocks", Json::array()},
            {"ops",
             {Op("forward", "attention", 4, 4e9),
              Op("forward", "attention", 6, 6e9),
              Op("forward", "linear", 1, 4e9), Op("backward", "linear", 1, 9e9),
              Op("backward", "attention", 2, 6e9)}}}},
          {"idle",
           {{"device",
             {{"host_wait_ms", 6.0},
              {"kernel_wait_ms", 4.0},
              {"other_ms", 0.0}}}}}};
}

TEST(TraceFiguresTest, AttentionIsOfOneLayerAndComparedWithLinearLayers) {
  const Json figures = TraceFigures(Profile(), /*head_dim=*/50);
  EXPECT_EQ(figures["attention"],
            (Json{{"forward",
                   {{"ms", 5.0},
                    {"scores_ms", 1.0},
                    {"softmax_ms", 1.5},
                    {"values_ms", 2.0},
                    {"softmax_time_pct", 50.0},
                    {"softmax_flops_pct", 2.5},
                    {"tflops", 1.0},
                    {"linear_tflops", 4.0},
                    {"beside_products_pct", 75.0}}},
                  {"backward",
                   {{"ms", 2.0},
                    {"softmax_flops_pct", 2.5},
                    {"tflops", 3.0},
                    {"linear_tflops", 9.0},
                    {"beside_products_pct", 100 * (1 - 3.0 / 9)}}}}));
}

TEST(TraceFiguresTest, KernelsThatAreNoGemmsAndGapsOfOneStep) {
  const Json figures = TraceFigures(Profile(), /*head_dim=*/50);
  ASSERT_EQ(figures["non_gemm"].size(), 1u);
  EXPECT_EQ(figures["non_gemm"][0]["name"], "b");
  EXPECT_EQ(figures["kernels"][0]["share_pct"], 75);
  EXPECT_EQ(figures["classes"]["GEMM"]["pct"], 75);
  EXPECT_EQ(figures["phases"]["forward"]["ms"], 1);
  EXPECT_EQ(figures["gaps"]["host_wait_ms"], 3);
  EXPECT_EQ(figures["gaps"]["kernel_wait_ms"], 2);
}

TEST(TraceFiguresTest, LongestKernelsKeepTheirCounters) {
  Json profile = Profile();
  profile["step"]["kernels"][0]["dram_bytes"] = 7;
  const Json longest = LongestKernels(profile, /*most=*/2);
  ASSERT_EQ(longest.size(), 2u);
  EXPECT_EQ(longest[0], (Json{{"name", "a"},
                              {"class", "GEMM"},
                              {"share", 0.75},
                              {"dram_bytes", 7},
                              {"share_pct", 75.0}}));
  EXPECT_EQ(longest[1]["name"], "b");
  EXPECT_EQ(LongestKernels(profile, /*most=*/10).size(), 3u);
}

}  // namespace
}  // namespace tessera
