#ifndef TESTS_TESTING_CONFIG_RULES_H_
#define TESTS_TESTING_CONFIG_RULES_H_

#include <string>
#include <vector>

#include "framework/base/violations.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// A config as a text proto, and the only field with a broken rule; empty if
// there is none.
struct ConfigRule {
  std::string text;
  std::string broken;
};

// Checks that Validate(const Config&, Violations) finds that violation and no
// other.
template <typename Config>
void ExpectBreaks(const ConfigRule& rule) {
  Config config;
  ASSERT_TRUE(
      google::protobuf::TextFormat::ParseFromString(rule.text, &config));
  std::vector<Violation> violations;
  Validate(config, Violations(&violations));
  if (rule.broken.empty()) {
    EXPECT_TRUE(violations.empty()) << violations.front().message;
  } else {
    ASSERT_EQ(violations.size(), 1);
    EXPECT_EQ(violations[0].path, rule.broken);
  }
}

}  // namespace tessera::testing

#endif  // TESTS_TESTING_CONFIG_RULES_H_
