#include "framework/base/json_fields.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json Parse(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

TEST(JsonFieldsTest, ReadsEveryType) {
  const nlohmann::json json = Parse(R"({"count": 9223372036854775807,
      "unsigned": 18446744073709551615, "number": -0.5, "flag": true,
      "text": "a", "checksum": "00000000000000ff", "base64": "YWI=",
      "list": ["YWI=", ""], "inner": {"count": 0}})");
  JsonFields fields(json, "f.json");
  EXPECT_EQ(fields.Count("count"), JsonFields::kMost);
  EXPECT_EQ(fields.Unsigned("unsigned"), ~uint64_t{0});
  EXPECT_EQ(fields.Number("number"), -0.5);
  EXPECT_TRUE(fields.Flag("flag"));
  EXPECT_EQ(fields.Text("text"), "a");
  EXPECT_EQ(fields.Checksum("checksum"), 255);
  EXPECT_EQ(fields.Base64("base64"), "ab");
  EXPECT_THAT(fields.Base64List("list"), ElementsAre("ab", ""));
  EXPECT_EQ(fields.Object("inner").Count("count"), 0);
  EXPECT_TRUE(fields.Has("flag"));
  EXPECT_FALSE(fields.Has("flags"));
  EXPECT_TRUE(fields.status().ok()) << fields.status();
}

// Calls each getter on a field with the value, or on a missing field.
TEST(JsonFieldsTest, AWrongValueIsAnErrorThatNamesTheField) {
  for (const char* value : {"", "null", "true", "-1", "1.0", "1e300", "11",
                            "18446744073709551616", "\"many\"", "\"\"", "\"!\"",
                            "[]", "[1]", "[\"!\"]", "{}", "{\"x\": 1}"}) {
    const nlohmann::json json =
        Parse(*value == 0 ? "{}" : absl::StrCat("{\"x\": ", value, "}"));
    int errors = 0;
    const auto read = [&](auto get) {
      JsonFields fields(json, "a/f.json");
      get(fields);
      if (fields.status().ok()) return;
      ++errors;
      EXPECT_EQ(fields.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(fields.status().message()),
                  AllOf(HasSubstr("a/f.json: x must be "),
                        HasSubstr(*value == 0 ? "; is missing" : "; is ")));
    };
    read([](JsonFields& fields) { fields.Count("x", 10); });
    read([](JsonFields& fields) { fields.Unsigned("x"); });
    read([](JsonFields& fields) { fields.Number("x"); });
    read([](JsonFields& fields) { fields.Flag("x"); });
    read([](JsonFields& fields) { fields.Text("x"); });
    read([](JsonFields& fields) { fields.Checksum("x"); });
    read([](JsonFields& fields) { fields.Base64("x"); });
    read([](JsonFields& fields) { fields.Base64List("x"); });
    read([](JsonFields& fields) { fields.Object("x"); });
    EXPECT_GE(errors, 7) << value;  // two getters accept the type of another
  }
}

TEST(JsonFieldsTest, ErrorsSayTheValueAndWhatIsAllowed) {
  const nlohmann::json json =
      Parse(absl::StrCat(R"({"train": {"tokens": -3}, "long": ")",
                         std::string(1000, 'x'), R"("})"));
  JsonFields fields(json, "f");
  fields.Object("train").Count("tokens", 7);
  EXPECT_EQ(fields.status().message(),
            "f: train.tokens must be a whole number in [0, 7]; is -3");
  // The first error stays.
  fields.Flag("long");
  EXPECT_THAT(std::string(fields.status().message()), HasSubstr("is -3"));
  JsonFields again(json, "f");
  again.Flag("long");
  EXPECT_THAT(std::string(again.status().message()),
              HasSubstr("xxx... (1002 characters)"));
  EXPECT_LT(again.status().message().size(), 150);
}

TEST(JsonFieldsTest, ANonObjectHasNoFields) {
  for (const auto& [text, message] :
       {std::pair<std::string, std::string>{"[1]",
                                            "f must be a JSON object; "
                                            "is [1]"},
        {"{", "f is not JSON; must be a JSON object"}}) {
    const nlohmann::json json = Parse(text);
    JsonFields fields(json, "f");
    EXPECT_EQ(fields.status().message(), message);
    EXPECT_EQ(fields.Object("x").Object("y").Count("z"), 0);
    EXPECT_EQ(fields.status().message(), message);
  }
}

}  // namespace
}  // namespace tessera
