#include "framework/data/tokenize/bpe_trainer.h"

#include <optional>
#include <string>
#include <vector>

#include "framework/data/tokenize/split_pattern.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"
#include "tests/framework/data/tokenize/tokenizer_fixtures.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using testing::CppText;
using testing::Fails;
using testing::Fixture;
using ::testing::HasSubstr;
using testing::IsOk;
using Json = nlohmann::json;

TextStream Stream(const std::vector<std::string>& texts) {
  return [&texts, next = size_t{0}]() mutable {
    return next < texts.size() ? std::optional<absl::string_view>(texts[next++])
                               : std::nullopt;
  };
}

// Token ids, and merges as pairs of texts.
Json Learned(const Json& json) {
  Json merges = json["model"]["merges"];
  for (Json& merge : merges) {
    if (!merge.is_string()) continue;
    const std::string text = merge;
    const size_t space = text.find(' ');
    merge = {text.substr(0, space), text.substr(space + 1)};
  }
  return {{"vocab", json["model"]["vocab"]}, {"merges", merges}};
}

TEST(BpeTrainerTest, LearnsWhatTokenizersLearns) {
  std::vector<std::string> texts;
  const Json fixture = Fixture("expected");
  for (const Json& text : fixture["texts"]) texts.push_back(text);
  for (const char* name : {"gpt2", "cl100k", "o200k"}) {
    const Json expected = Fixture(name);
    const Json& pre_tokenizer = expected["pre_tokenizer"];
    const bool is_gpt2 = pre_tokenizer["type"] == "ByteLevel";
    const std::string pattern =
        is_gpt2 ? std::string(kGpt2Pattern)
                : pre_tokenizer["pretokenizers"][0]["pattern"]["Regex"]
                      .get<std::string>();
    const auto vocab_size = static_cast<int>(expected["model"]["vocab"].size());
    const auto tokenizer =
        TrainByteLevelBpe({vocab_size, pattern}, Stream(texts));
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ(Learned(Json::parse((*tokenizer)->Serialize())),
              Learned(expected))
        << name;
  }
}

TEST(BpeTrainerTest, BreaksTiesByTheSmallerIds) {
  // "ab" and "cd" occur twice each.
  const std::vector<std::string> texts = {"cd ab", "cd ab"};
  const auto tokenizer =
      TrainByteLevelBpe({258, std::string(kGpt2Pattern)}, Stream(texts));
  ASSERT_THAT(tokenizer, IsOk());
  const Json json = Json::parse((*tokenizer)->Serialize());
  EXPECT_EQ(json["model"]["merges"], Json::parse(R"([["a", "b"]])"));
}

TEST(BpeTrainerTest, StopsWhenNoPairRepeats) {
  const std::vector<std::string> texts = {"abcdefg \xff abc"};
  const auto tokenizer =
      TrainByteLevelBpe({5000, std::string(kGpt2Pattern)}, Stream(texts));
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 257 + 2);  // ab, abc
  EXPECT_EQ((*tokenizer)->eos_id(), 0);
}

TEST(BpeTrainerTest, CompressesItsLanguageAndIsReproducible) {
  const std::vector<std::string> texts = {CppText(3000, 1)};
  const ByteLevelBpeOptions options = {400, std::string(kLlama3Pattern)};
  const auto tokenizer = TrainByteLevelBpe(options, Stream(texts));
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->vocab_size(), 400);
  const std::string text = CppText(1000, 4);
  EXPECT_LT((*tokenizer)->Encode(text)->size(), text.size() / 3);
  EXPECT_EQ(TrainByteLevelBpe(options, Stream(texts)).value()->Serialize(),
            (*tokenizer)->Serialize());
}

TEST(BpeTrainerTest, RefusesBadInput) {
  const std::vector<std::string> texts = {"a"};
  EXPECT_THAT(
      TrainByteLevelBpe({256, std::string(kGpt2Pattern)}, Stream(texts)),
      Fails(StatusCode::kInvalidArgument, HasSubstr("less than 257")));
  EXPECT_THAT(TrainByteLevelBpe({300, "\\w+"}, Stream(texts)),
              Fails(StatusCode::kInvalidArgument, HasSubstr("\\w")));
}

}  // namespace
}  // namespace tessera
