// As many cases as the largest suites have, for limited_printer_test.
// Environment variables set how many of them fail or are skipped.

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace {

constexpr int kTests = 6000;

int Count(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? 0 : std::atoi(value);
}

class ManyTests : public testing::TestWithParam<int> {};

// The last cases fail, twice each and with long texts; those before are
// skipped.
TEST_P(ManyTests, Case) {
  const int from_end = kTests - 1 - GetParam();
  const int failing = Count("FAILING"), skipped = Count("SKIPPED");
  if (from_end < failing) {
    EXPECT_TRUE(false) << "first failure of " << GetParam();
    EXPECT_TRUE(false) << std::string(10'000, 'x');
  } else if (from_end < failing + skipped) {
    GTEST_SKIP() << "for a reason that is about as long as reasons are";
  }
}

INSTANTIATE_TEST_SUITE_P(Each, ManyTests, testing::Range(0, kTests),
                         [](const testing::TestParamInfo<int>& info) {
                           // Names are long.
                           return std::string(60, 'n') + "_" +
                                  std::to_string(info.param);
                         });

}  // namespace
