#include "framework/observe/observe_config_validation.h"

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

class ObserveConfigTest : public testing::TestWithParam<Case> {};

TEST_P(ObserveConfigTest, BreaksThatRule) {
  ObserveConfig config;
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
    Rules, ObserveConfigTest,
    testing::Values(Case{"", ""},
                    Case{"log_every_steps: 1 peak_tflops: 0.5", ""},
                    Case{"log_every_steps: 0", "log_every_steps"},
                    Case{"progress_bar: UNSPECIFIED", "progress_bar"},
                    Case{"peak_tflops: 0", "peak_tflops"},
                    Case{"peak_tflops: inf", "peak_tflops"},
                    Case{"peak_tflops: nan", "peak_tflops"}));

}  // namespace
}  // namespace tessera
