#include "framework/checkpoint/checkpoint_config_validation.h"

#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

struct Case {
  std::string text;
  std::string broken;  // the field whose rule is broken; empty for none
};

class CheckpointConfigTest : public testing::TestWithParam<Case> {};

TEST_P(CheckpointConfigTest, BreaksThatRule) {
  CheckpointConfig config;
  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString(GetParam().text, &config));
  std::vector<Violation> violations;
  Validate(config, Violations(&violations));
  if (GetParam().broken.empty()) {
    EXPECT_TRUE(violations.empty()) << violations.front().message;
  } else {
    ASSERT_EQ(violations.size(), 1);
    EXPECT_EQ(violations[0].path, GetParam().broken);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, CheckpointConfigTest,
    testing::Values(Case{"", ""}, Case{"every_steps: 1 keep_last: 1", ""},
                    Case{"keep_every_steps: 100", ""},
                    Case{"every_steps: 0", "every_steps"},
                    Case{"every_steps: -1", "every_steps"},
                    Case{"keep_last: 0", "keep_last"},
                    Case{"keep_every_steps: 0", "keep_every_steps"}));

}  // namespace
}  // namespace tessera
