#include "framework/base/json.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(ParseJsonTest, ReturnsTheValue) {
  const nlohmann::json json = ParseJson(R"({"a": [1, {"b": null}], "c": "d"})");
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["a"][1], nlohmann::json({{"b", nullptr}}));
  EXPECT_EQ(json["c"], "d");
  EXPECT_EQ(ParseJson("1\n"), 1);
}

TEST(ParseJsonTest, DiscardsWhatIsNotJson) {
  using std::string_literals::operator""s;
  for (const std::string& text : {""s, "{"s, "1 2"s, "[1e999]"s, "\"\xff\""s,
                                  "{}\0"s, "{}\0\0}"s, "\0"s}) {
    EXPECT_TRUE(ParseJson(text).is_discarded()) << text;
  }
}

TEST(ParseJsonTest, DiscardsWhatNestsTooDeep) {
  const nlohmann::json deepest = ParseJson(Nested(kMaxJsonDepth));
  ASSERT_FALSE(deepest.is_discarded());
  EXPECT_EQ(deepest.dump(), Nested(kMaxJsonDepth));
  EXPECT_FALSE(ParseJson("[[1], {\"a\": []}]").is_discarded());
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth + 1)).is_discarded());
  EXPECT_TRUE(ParseJson(Nested(1'000'000)).is_discarded());
  EXPECT_TRUE(ParseJson("{\"a\": " + Nested(1'000'000) + "}").is_discarded());
}

}  // namespace
}  // namespace tessera
