#include "framework/data/tokenize/added_tokens.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using testing::IsOk;
using Tokens = std::vector<std::pair<std::string, int32_t>>;
using Parts = std::vector<std::pair<std::string, int32_t>>;  // -1: no token

Parts Split(const AddedTokenFinder& finder, absl::string_view text) {
  Parts parts;
  EXPECT_THAT(
      finder.Split(text,
                   [&](absl::string_view part, std::optional<int32_t> id) {
                     parts.emplace_back(part, id.value_or(-1));
                     return absl::OkStatus();
                   }),
      IsOk());
  return parts;
}

// What Split() must find, by comparing every token at every place.
Parts Expected(const Tokens& tokens, absl::string_view text) {
  Parts parts;
  bool in_text = false;
  while (!text.empty()) {
    const std::pair<std::string, int32_t>* longest = nullptr;
    for (const auto& token : tokens) {
      if (absl::StartsWith(text, token.first) &&
          (longest == nullptr || token.first.size() > longest->first.size())) {
        longest = &token;
      }
    }
    if (longest == nullptr) {
      if (!std::exchange(in_text, true)) parts.emplace_back("", -1);
      parts.back().first += text[0];
      text.remove_prefix(1);
    } else {
      in_text = false;
      parts.push_back(*longest);
      text.remove_prefix(longest->first.size());
    }
  }
  return parts;
}

TEST(AddedTokenFinderTest, TakesTheLongestTokenAtEachPlace) {
  const AddedTokenFinder finder(
      {{"<a>", 1}, {"<", 2}, {"<a>b", 3}, {"<ab", 4}, {"<a>", 5}});
  EXPECT_EQ(Split(finder, "<a>b<a>c<ab<b"), (Parts{{"<a>b", 3},
                                                   {"<a>", 1},
                                                   {"c", -1},
                                                   {"<ab", 4},
                                                   {"<", 2},
                                                   {"b", -1}}));
  EXPECT_EQ(Split(finder, ""), Parts{});
  EXPECT_EQ(Split(AddedTokenFinder({}), "<a>"), (Parts{{"<a>", -1}}));
}

TEST(AddedTokenFinderTest, FindsWhatASearchOfAllTokensFinds) {
  std::mt19937 random(1);
  const auto word = [&](size_t most) {
    std::string text;
    for (size_t size = 1 + random() % most; text.size() < size;) {
      text += "ab\xff"[random() % 3];
    }
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    Tokens tokens;
    for (int32_t id = 0; id < i % 30; ++id) tokens.emplace_back(word(6), id);
    const AddedTokenFinder finder(tokens);
    const std::string text = word(200);
    EXPECT_EQ(Split(finder, text), Expected(tokens, text));
  }
}

}  // namespace
}  // namespace tessera
