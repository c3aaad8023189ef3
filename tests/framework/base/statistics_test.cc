#include "framework/base/statistics.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(StatisticsTest, MedianIsTheMiddleOrTheMeanOfTwo) {
  EXPECT_EQ(Median({}), std::nullopt);
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({8, 2, 4, 6}), 5);
}

TEST(StatisticsTest, StandardDeviationIsThatOfASample) {
  EXPECT_EQ(StandardDeviation({1}), std::nullopt);
  EXPECT_DOUBLE_EQ(*StandardDeviation({1, 2, 3}), 1);
}

}  // namespace
}  // namespace tessera
