#include "framework/base/proto_override.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/base/kitchen.pb.h"

namespace tessera {
namespace {

using ::tessera::testing::Kitchen;

struct Override {
  std::string assignment;
  std::string result;  // the whole message, or the error after "--set ...: "
};

class OverrideTest : public ::testing::TestWithParam<Override> {};

TEST_P(OverrideTest, SetsTheField) {
  Kitchen kitchen;
  kitchen.add_guests("Ada");
  kitchen.mutable_gas()->set_flow(2);
  const auto path = ApplyOverride(GetParam().assignment, &kitchen);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(GetParam().assignment.substr(0, path->size()), *path);
  EXPECT_EQ(kitchen.ShortDebugString(), GetParam().result);
}

INSTANTIATE_TEST_SUITE_P(
    All, OverrideTest,
    ::testing::Values(
        Override{"oven.trays=2",
                 "oven { trays: 2 } guests: \"Ada\" gas { flow: 2 }"},
        Override{"oven.temperature=3e-4",
                 "oven { temperature: 0.0003 } guests: \"Ada\" "
                 "gas { flow: 2 }"},
        Override{"oven.mode=STEAM",
                 "oven { mode: STEAM } guests: \"Ada\" gas { flow: 2 }"},
        Override{"open=false", "guests: \"Ada\" open: false gas { flow: 2 }"},
        Override{"budget_cents=-9000000000",
                 "guests: \"Ada\" budget_cents: -9000000000 gas { flow: 2 }"},
        Override{"motto=low = slow",
                 "guests: \"Ada\" motto: \"low = slow\" gas { flow: 2 }"},
        Override{"motto=\"a\\nb\"",
                 "guests: \"Ada\" motto: \"a\\nb\" gas { flow: 2 }"},
        Override{"motto=", "guests: \"Ada\" motto: \"\" gas { flow: 2 }"},
        Override{"guests=[Alan, 'Grace, H.']",
                 "guests: \"Alan\" guests: \"Grace, H.\" gas { flow: 2 }"},
        Override{"guests=Alan", "guests: \"Alan\" gas { flow: 2 }"},
        Override{"guests=[]", "gas { flow: 2 }"},
        Override{"seats=[1,2]",
                 "guests: \"Ada\" seats: 1 seats: 2 gas { flow: 2 }"},
        Override{"dishes=[{name: 'a, b' portions: 1}, {}]",
                 "dishes { name: \"a, b\" portions: 1 } dishes { } "
                 "guests: \"Ada\" gas { flow: 2 }"},
        // A message is replaced, not merged.
        Override{"gas={}", "guests: \"Ada\" gas { }"},
        // Selects the other case.
        Override{"wood.logs=9", "guests: \"Ada\" wood { logs: 9 }"}));

class BadOverrideTest : public ::testing::TestWithParam<Override> {};

TEST_P(BadOverrideTest, ErrorSaysWhatIsExpected) {
  Kitchen kitchen;
  kitchen.mutable_gas();
  const absl::Status status =
      ApplyOverride(GetParam().assignment, &kitchen).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "--set " + GetParam().assignment + ": " + GetParam().result);
  EXPECT_EQ(kitchen.ShortDebugString(), "gas { }");
}

INSTANTIATE_TEST_SUITE_P(
    All, BadOverrideTest,
    ::testing::Values(
        Override{"oven.trays", "has no '='; write --set PATH=VALUE"},
        Override{"oven.tray=1",
                 "Oven has no field 'tray'; did you mean 'trays'?"},
        Override{"oben.trays=1",
                 "Kitchen has no field 'oben'; did you mean 'oven'?"},
        Override{"oven.trays.depth=1", "'trays' is a value and has no fields"},
        Override{"dishes.name=x", "'dishes' is a list, set as a whole: [a, b]"},
        Override{"oven.trays=many", "'many' is not a whole number below 2^31"},
        Override{"oven.trays=4294967296",
                 "'4294967296' is not a whole number below 2^31"},
        Override{"oven.trays=1 2", "'1 2' is not a whole number below 2^31"},
        Override{"knives=-1", "'-1' is not a whole number from 0, below 2^32"},
        Override{"salt=much", "'much' is not a number"},
        Override{"open=yes", "'yes' is not true or false"},
        Override{"oven.mode=BOIL", "'BOIL' is not one of GRILL, STEAM"},
        Override{"seats=[1,x]", "'x' is not a whole number below 2^31"},
        Override{"seats=[1", "'[1' has no closing ]; a list is [a, b]"},
        Override{"oven=hot",
                 "'hot' is not {...} with fields of Oven: "
                 "expected \"{\", found \"hot\"."},
        Override{"wood={log: 1}",
                 "'{log: 1}' is not {...} with fields of Wood: "
                 "Wood has no field 'log'; did you mean 'logs'?"},
        Override{"=1",
                 "Kitchen has no field ''; it has oven, dishes, guests, "
                 "seats, motto, open, budget_cents, knives, salt, gas, "
                 "wood"}));

TEST(ApplyOverrideTest, ErrorsShortenLongValues) {
  const std::string much(10000, 'x');
  for (const std::string& assignment :
       {"oven.trays=" + much, "seats=[" + much, much, much + "=1",
        "oven=" + much, "wood={" + much + ": 1}"}) {
    Kitchen kitchen;
    const std::string message(
        ApplyOverride(assignment, &kitchen).status().message());
    EXPECT_THAT(message, ::testing::HasSubstr(" ... "));
    EXPECT_LT(message.size(), 1500u);
  }
  Kitchen kitchen;
  EXPECT_EQ(ApplyOverride("oven.trays=\x1b[2J\n", &kitchen).status().message(),
            "--set oven.trays=\\x1b[2J\\n: '\\x1b[2J' is not a whole number "
            "below 2^31");
}

}  // namespace
}  // namespace tessera
