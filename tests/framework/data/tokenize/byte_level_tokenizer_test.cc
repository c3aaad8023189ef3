#include "framework/data/tokenize/byte_level_tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "framework/data/tokenize/nfc.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"
#include "tests/framework/data/tokenize/tokenizer_fixtures.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using testing::Fails;
using testing::Fixture;
using testing::FixtureText;
using ::testing::HasSubstr;
using testing::IsOk;
using Json = nlohmann::json;

std::unique_ptr<Tokenizer> Load(const std::string& json) {
  auto tokenizer = LoadByteLevelBpe(json);
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

class FixtureTest : public ::testing::TestWithParam<std::string> {
 protected:
  const Json expected_ = Fixture("expected");
  const std::unique_ptr<Tokenizer> tokenizer_ = Load(FixtureText(GetParam()));
};

TEST_P(FixtureTest, HasTheIdsOfTokenizers) {
  for (const auto& [name, ids] : expected_["ids"][GetParam()].items()) {
    const std::string text = expected_["texts"][name];
    // Twice: from an empty cache and from a full one.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(tokenizer_->Encode(text).value(),
                ids.get<std::vector<int32_t>>())
          << name;
    }
  }
}

TEST_P(FixtureTest, DecodesToTheText) {
  if (GetParam() == "stages") GTEST_SKIP() << "it adds spaces";
  for (const auto& [name, text] : expected_["texts"].items()) {
    if (name == "special") continue;  // the end of a document has no text
    std::string buffer, original = text;
    if (GetParam() == "qwen2") original = std::string(ToNfc(original, &buffer));
    const auto ids = tokenizer_->Encode(text.get<std::string>());
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(tokenizer_->Decode(*ids).value(), original) << name;
  }
}

TEST_P(FixtureTest, IsWrittenAsItWasRead) {
  const auto again = LoadTokenizer(TokenizerKind::kByteLevelBpe,
                                   tokenizer_->Serialize(), "source");
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(tokenizer_->Serialize(), FixtureText(GetParam()));
  const std::string text = expected_["texts"]["code"];
  EXPECT_EQ((*again)->Encode(text).value(), tokenizer_->Encode(text).value());
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, FixtureTest,
                         ::testing::Values("gpt2", "cl100k", "o200k", "llama3",
                                           "qwen2", "stages"),
                         [](const auto& info) { return info.param; });

TEST(ByteLevelTokenizerTest, KeepsBytesThatAreNotUtf8) {
  const auto tokenizer = Load(FixtureText("llama3"));
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<char>(i));
  for (const std::string& text :
       {every_byte + every_byte, std::string("\xff"),
        std::string("caf\xe9 \xe2\x96 cut \xf0\x9f\x9a"),
        std::string("\xed\xa0\x80 a surrogate"),
        std::string("<|im_start|>\xff<|im_end|>")}) {
    const auto ids = tokenizer->Encode(text);
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(tokenizer->Decode(*ids).value(), text);
  }
  // A stretch of such bytes changes nothing in the text around it.
  const auto join = [&](std::vector<std::string> parts) {
    std::vector<int32_t> ids;
    for (const std::string& part : parts) {
      const std::vector<int32_t> more = tokenizer->Encode(part).value();
      ids.insert(ids.end(), more.begin(), more.end());
    }
    return ids;
  };
  EXPECT_EQ(tokenizer->Encode("All human\xff\xfe beings").value(),
            join({"All human", "\xff", "\xfe", " beings"}));
}

TEST(ByteLevelTokenizerTest, EncodesOnManyThreads) {
  const auto tokenizer = Load(FixtureText("qwen2"));
  const Json texts = Fixture("expected")["texts"];
  const Json ids = Fixture("expected")["ids"]["qwen2"];
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const auto& [name, text] : texts.items()) {
        EXPECT_EQ(tokenizer->Encode(text.get<std::string>()).value(),
                  ids[name].get<std::vector<int32_t>>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ByteLevelTokenizerTest, HoldsIdsOfSpecialTokens) {
  const auto tokenizer = Load(FixtureText("llama3"));
  EXPECT_EQ(tokenizer->kind(), TokenizerKind::kByteLevelBpe);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_EQ(tokenizer->vocab_size(), 704 + 2);
  EXPECT_EQ(tokenizer->Decode({0, 704, 705}).value(), "<|im_start|><|im_end|>");
  EXPECT_THAT(tokenizer->Decode({706}),
              Fails(StatusCode::kOutOfRange, HasSubstr("706")));
  EXPECT_THAT(tokenizer->Decode({-1}),
              Fails(StatusCode::kOutOfRange, HasSubstr("-1")));
}

TEST(ByteLevelTokenizerTest, KnowsWhichTokenEndsADocument) {
  Json json = Fixture("llama3");
  const auto eos = [&](const std::string& name) {
    json["added_tokens"][0]["content"] = name;
    json["model"]["vocab"].erase("<|endoftext|>");
    json["added_tokens"][0]["id"] = 704;
    json["added_tokens"][1]["id"] = 705;
    json["added_tokens"][2]["id"] = 706;
    return LoadByteLevelBpe(json.dump());
  };
  json["model"]["vocab"]["new"] = 0;
  for (const char* name :
       {"<|endoftext|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>"}) {
    const auto tokenizer = eos(name);
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->eos_id(), 704) << name;
  }
  EXPECT_THAT(eos("<eod>"), Fails(StatusCode::kInvalidArgument,
                                  HasSubstr("which token ends a document")));
  json["added_tokens"][1]["special"] = false;
  json["added_tokens"][2]["special"] = false;
  const auto only = eos("<eod>");
  ASSERT_THAT(only, IsOk());
  EXPECT_EQ((*only)->eos_id(), 704);
}

TEST(ByteLevelTokenizerTest, ATemplateSaysWhatATextBeginsWith) {
  Json json = Fixture("llama3");
  Json& form = json["post_processor"]["processors"][1];
  form["special_tokens"]["<|endoftext|>"]["ids"] = {704, 705};
  EXPECT_EQ(Load(json.dump())->begin_ids(), (std::vector<int32_t>{704, 705}));
  // What comes after the text does not begin it.
  std::swap(form["single"][0], form["single"][1]);
  EXPECT_EQ(Load(json.dump())->begin_ids(), std::vector<int32_t>());
  json["post_processor"] = nullptr;
  EXPECT_EQ(Load(json.dump())->begin_ids(), std::vector<int32_t>());
}

TEST(ByteLevelTokenizerTest, PatternsThatTakeTooLongAreErrors) {
  Json json = Fixture("llama3");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+[bc]";
  const auto tokenizer = Load(json.dump());
  EXPECT_THAT(tokenizer->Encode(std::string(2000, 'a')),
              Fails(StatusCode::kInvalidArgument, HasSubstr("pattern")));
  EXPECT_THAT(tokenizer->Encode("aab"), IsOk());
}

TEST(ByteLevelTokenizerTest, SaysThatAModelHasTooFewIds) {
  const auto tokenizer = Load(FixtureText("llama3"));
  EXPECT_THAT(CheckVocabulary(*tokenizer, "a/tokenizer.json", 706), IsOk());
  EXPECT_THAT(
      CheckVocabulary(*tokenizer, "a/tokenizer.json", 705),
      Fails(StatusCode::kInvalidArgument,
            HasSubstr("a/tokenizer.json: the tokenizer has token ids up to "
                      "705, but model.vocab_size is 705; raise "
                      "model.vocab_size to at least 706")));
}

}  // namespace
}  // namespace tessera
