#include "bench/measure/sample_summary.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(SampleSummaryTest, OfEvenAndOddCounts) {
  const nlohmann::ordered_json odd = Summary({4, 1, 1});
  EXPECT_EQ(odd["mean"], 2);
  EXPECT_NEAR(odd["std"], 1.7320508, 1e-6);
  EXPECT_EQ(odd["median"], 1);
  EXPECT_EQ(odd["min"], 1);
  EXPECT_EQ(odd["max"], 4);
  EXPECT_EQ(odd["samples"], 3);
  EXPECT_EQ(MedianOf({8, 2, 4, 6}), 5);
  EXPECT_EQ(Summary({3})["std"], 0);
}

}  // namespace
}  // namespace tessera
