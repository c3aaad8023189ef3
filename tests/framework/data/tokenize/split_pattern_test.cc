#include "framework/data/tokenize/split_pattern.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using testing::Fails;
using ::testing::HasSubstr;
using testing::IsOk;

// The parts of the text; those that do not match are in parentheses.
std::string Parts(absl::string_view pattern, absl::string_view text) {
  const auto compiled = SplitPattern::Compile(pattern);
  EXPECT_THAT(compiled, IsOk());
  SplitPattern::MatchState state;
  std::vector<std::string> parts;
  EXPECT_THAT(compiled->Split(text, &state,
                              [&](absl::string_view part, bool is_match) {
                                parts.push_back(
                                    is_match ? std::string(part)
                                             : absl::StrCat("(", part, ")"));
                                return absl::OkStatus();
                              }),
              IsOk());
  return absl::StrJoin(parts, "|");
}

TEST(SplitPatternTest, SplitsAsGpt2AndItsSuccessors) {
  const absl::string_view text = "We'LL add 12345 x's\n\n  to it!?\n";
  EXPECT_EQ(Parts(kGpt2Pattern, text),
            "We|'|LL| add| 12345| x|'s|\n\n | to| it|!?|\n");
  EXPECT_EQ(Parts(kLlama3Pattern, text),
            "We|'LL| add| |123|45| x|'s|\n\n| | to| it|!?\n");
  EXPECT_EQ(Parts(kQwen2Pattern, "v12"), "v|1|2");
}

TEST(SplitPatternTest, ReturnsWhatIsBetweenMatches) {
  EXPECT_EQ(Parts("b+", "abbab"), "(a)|bb|(a)|b");
  EXPECT_EQ(Parts("b+", "aaa"), "(aaa)");
  EXPECT_EQ(Parts("b+", ""), "");
  EXPECT_EQ(Parts("(?<=a)b", "abb"), "(a)|b|(b)");
}

TEST(SplitPatternTest, TranslatesWhatOnigurumaMeans) {
  EXPECT_EQ(
      PcrePattern(R"(\s+[^\s\p{L}]\S)").value(),
      R"([\p{Z}\t-\r\x{85}]+[^\p{Z}\t-\r\x{85}\p{L}][^\p{Z}\t-\r\x{85}])");
  EXPECT_EQ(Parts(R"(\s+)", "a\xe1\xa0\x8e \xc2\x85"),
            "(a\xe1\xa0\x8e)| \xc2\x85");  // U+180E is no space
  // Same in both.
  EXPECT_EQ(Parts(R"((?i:ab)|[c-e]++|\[+?|f{1,}|\-)", "aBcd[[ff-"),
            "aB|cd|[|[|ff|-");
}

TEST(SplitPatternTest, RefusesWhatMayMeanSomethingElse) {
  for (const auto& [pattern, error] :
       std::vector<std::pair<std::string, std::string>>{
           {"a.b", "byte 1: '.'"},
           {"^a", "byte 0: '^'"},
           {"a$", "byte 1: '$'"},
           {"\\w+", "byte 0: '\\w'"},
           {"[\\S]", "byte 1: '\\S'"},
           {"\\h", "'\\h'"},
           {"\\d", "'\\d'"},
           {"\\b", "'\\b'"},
           {"\\x{41}", "'\\x'"},
           {"a\\", "byte 1: '\\'"},
           {"\\p{Han}", "'\\p{Han}'"},
           {"\\p{^L}", "'\\p{^L}'"},
           {"\\pL", "'\\p'"},
           {"\\p{L", "'\\p'"},
           {"[a[b]]", "'[ inside []'"},
           {"[a&&b]", "'&&'"},
           {"[]a]", "'[]'"},
           {"[a", "a [ has no ]"},
           {"a)]", "']'"},
           {"a{,3}", "'{,3}'"},
           {"a{x}", "'{x'"},
           {"a{1,2,3}", "'{1,2,3}'"},
           {"a{2}?", "'}?'"},
           {"a{2}+", "'}+'"},
           {"a**", "'*'"},
           {"a+++", "'+'"},
           {"(?i)a", "'(?i'"},
           {"(?<n>a)", "'(?<'"},
           {"(*UCP)a", "'(*U'"},
           {"(a", "not a regular expression"},
           {"a|", "matches an empty text"},
           {"a*", "matches an empty text"},
           {"(?=a)", "matches an empty text"},
           {std::string(20000, 'a'), "20000 bytes; at most 16384"},
       }) {
    EXPECT_THAT(SplitPattern::Compile(pattern),
                Fails(StatusCode::kInvalidArgument, HasSubstr(error)))
        << pattern.substr(0, 20);
  }
}

}  // namespace
}  // namespace tessera
