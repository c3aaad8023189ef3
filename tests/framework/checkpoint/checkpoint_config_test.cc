#include "framework/checkpoint/checkpoint_config.h"

#include <string>

#include "absl/time/time.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/config_rules.h"

namespace tessera {
namespace {

using testing::ConfigRule;

class CheckpointConfigTest : public ::testing::TestWithParam<ConfigRule> {};

TEST_P(CheckpointConfigTest, BreaksThatRule) {
  testing::ExpectBreaks<CheckpointConfig>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Rules, CheckpointConfigTest,
    ::testing::Values(ConfigRule{"", ""},
                      ConfigRule{"every_steps: 1 keep_last: 1", ""},
                      ConfigRule{"keep_every_steps: 100", ""},
                      ConfigRule{"every_steps: 0", "every_steps"},
                      ConfigRule{"every_steps: -1", "every_steps"},
                      ConfigRule{"every_steps: 9 every_minutes: 0", ""},
                      ConfigRule{"every_minutes: 0.5", ""},
                      ConfigRule{"every_minutes: -1", "every_minutes"},
                      ConfigRule{"every_minutes: nan", "every_minutes"},
                      ConfigRule{"every_minutes: inf", "every_minutes"},
                      ConfigRule{"init_from: 'runs/a'", ""},
                      ConfigRule{"init_from: ''", "init_from"},
                      ConfigRule{"keep_last: 0", "keep_last"},
                      ConfigRule{"keep_every_steps: 0", "keep_every_steps"}));

CheckpointConfig Parse(const std::string& text) {
  CheckpointConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

TEST(SaveScheduleTest, TheClockDecidesUnlessStepsDo) {
  EXPECT_EQ(SaveInterval(Parse("")), absl::Minutes(15));
  EXPECT_EQ(SaveInterval(Parse("every_minutes: 0.5")), absl::Seconds(30));
  EXPECT_EQ(SaveInterval(Parse("every_minutes: 0")), absl::InfiniteDuration());
  EXPECT_EQ(SaveInterval(Parse("every_steps: 5")), absl::InfiniteDuration());
  EXPECT_EQ(SaveInterval(Parse("every_steps: 5 every_minutes: 2")),
            absl::Minutes(2));
}

TEST(SaveScheduleTest, HasADescription) {
  const std::string end = "after the last step";
  EXPECT_EQ(DescribeSaves(Parse("")), "every 15 minutes and " + end);
  EXPECT_EQ(DescribeSaves(Parse("every_minutes: 0")), end);
  EXPECT_EQ(DescribeSaves(Parse("every_steps: 1")), "every step and " + end);
  EXPECT_EQ(DescribeSaves(Parse("every_steps: 500 every_minutes: 1")),
            "every 500 steps and every minute and " + end);
  EXPECT_EQ(DescribeSaves(Parse("every_steps: 1048576")),
            "every 1048576 steps and " + end);
}

}  // namespace
}  // namespace tessera
