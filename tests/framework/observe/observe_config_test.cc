#include "framework/observe/observe_config.h"

#include "gtest/gtest.h"
#include "tests/testing/config_rules.h"

namespace tessera {
namespace {

using testing::ConfigRule;

class ObserveConfigTest : public ::testing::TestWithParam<ConfigRule> {};

TEST_P(ObserveConfigTest, BreaksThatRule) {
  testing::ExpectBreaks<ObserveConfig>(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Rules, ObserveConfigTest,
    ::testing::Values(
        ConfigRule{"", ""},
        ConfigRule{"log_every_steps: 1 peak_tflops: 0.5", ""},
        ConfigRule{"log_every_steps: 0", "log_every_steps"},
        ConfigRule{"progress_bar: UNSPECIFIED", "progress_bar"},
        ConfigRule{"memory_snapshot_step: 1", ""},
        ConfigRule{"memory_snapshot_step: 0", "memory_snapshot_step"},
        ConfigRule{"trace { active: 1 wait: 2 "
                   "kernel_counters: true }",
                   ""},
        ConfigRule{"trace { kernel_counters: true }", "trace.kernel_counters"},
        ConfigRule{"trace { active: 1 wait: 1 "
                   "kernel_counters: true }",
                   "trace.kernel_counters"},
        ConfigRule{"peak_tflops: 1e-3", ""}, ConfigRule{"peak_tflops: 1e9", ""},
        ConfigRule{"peak_tflops: 0", "peak_tflops"},
        ConfigRule{"peak_tflops: 1e-320", "peak_tflops"},
        ConfigRule{"peak_tflops: 1e308", "peak_tflops"},
        ConfigRule{"peak_tflops: inf", "peak_tflops"},
        ConfigRule{"peak_tflops: nan", "peak_tflops"}));

TEST(ConsoleTest, ProgressBarSetting) {
  EXPECT_TRUE(WantsProgressBar(ObserveConfig::ON));
  EXPECT_FALSE(WantsProgressBar(ObserveConfig::OFF));
}

}  // namespace
}  // namespace tessera
