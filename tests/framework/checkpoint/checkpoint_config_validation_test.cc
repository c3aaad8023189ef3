#include "framework/checkpoint/checkpoint_config_validation.h"

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
                      ConfigRule{"keep_last: 0", "keep_last"},
                      ConfigRule{"keep_every_steps: 0", "keep_every_steps"}));

}  // namespace
}  // namespace tessera
