#include "framework/data/tokenize/tokenizer_json.h"

#include <iterator>
#include <string>
#include <vector>

#include "framework/data/tokenize/split_pattern.h"
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
using ::testing::StartsWith;
using Json = nlohmann::json;

// A change of a field of the fixture llama3, and the beginning of the error.
struct Change {
  std::string pointer;  // RFC 6901
  Json value;
  std::string error;
};

class RefusalTest : public ::testing::TestWithParam<Change> {};

TEST_P(RefusalTest, NamesTheField) {
  Json json = Fixture("llama3");
  json[Json::json_pointer(GetParam().pointer)] = GetParam().value;
  const auto parsed = ParseTokenizerJson(json.dump());
  EXPECT_THAT(parsed, Fails(StatusCode::kInvalidArgument,
                            StartsWith(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(
    Components, RefusalTest,
    ::testing::Values(
        Change{"/colour", 1, "the file has the field 'colour', which is not"},
        Change{"/truncation", {{"max_length", 5}}, "truncation must be null"},
        Change{"/padding", true, "padding must be null; is true"},
        Change{"/normalizer",
               {{"type", "NFKC"}},
               "normalizer must be null or NFC; is \"NFKC\""},
        Change{"/normalizer", 7, "normalizer must be null or NFC; is 7"},
        Change{"/decoder",
               {{"type", "WordPiece"}},
               "decoder.type must be ByteLevel; is \"WordPiece\""},
        Change{"/decoder", nullptr, "decoder.type must be ByteLevel; is null"},
        Change{"/post_processor/processors/1/type", "BertProcessing",
               "post_processor.processors[1].type must be ByteLevel, "
               "TemplateProcessing"},
        Change{"/post_processor", "x", "post_processor.type must be"},
        Change{"/post_processor/processors/1/single", 3,
               "post_processor.processors[1].single must be a list; is 3"},
        Change{"/post_processor/processors/1/single/0",
               {{"Token", "a"}},
               "post_processor.processors[1].single must be made of "
               "SpecialTokens and Sequences; is an object of 1"},
        Change{"/post_processor/processors/1/special_tokens", nullptr,
               "post_processor.processors[1].special_tokens["
               "\"<|endoftext|>\"].ids must be a list of ids; is null"},
        Change{"/post_processor/processors/1/special_tokens/<|endoftext|>/ids",
               {706},
               "post_processor puts the id 706 before a text, but no token "
               "has it"},
        Change{"/post_processor/processors/1/special_tokens/<|endoftext|>/ids",
               Json(17, 0),
               "post_processor.processors[1] must be at most 16 ids before a "
               "text; is an array of 2"},
        Change{"/pre_tokenizer",
               {{"type", "Whitespace"}},
               "pre_tokenizer must be ByteLevel, or a Sequence of at most 15 "
               "Splits and ByteLevel; is \"Whitespace\""},
        Change{"/pre_tokenizer", nullptr, "pre_tokenizer must be ByteLevel"},
        Change{"/pre_tokenizer/pretokenizers", Json::array(),
               "pre_tokenizer must be ByteLevel"},
        Change{"/pre_tokenizer/pretokenizers", Json(100, Json::object()),
               "pre_tokenizer must be ByteLevel"},
        Change{"/pre_tokenizer/pretokenizers/0/type", "Digits",
               "pre_tokenizer.pretokenizers[0].type must be Split; is "
               "\"Digits\""},
        Change{"/pre_tokenizer/pretokenizers/0/pattern",
               {{"String", " "}},
               "pre_tokenizer.pretokenizers[0].pattern has the field 'String'"},
        Change{"/pre_tokenizer/pretokenizers/0/pattern/Regex", 3,
               "pre_tokenizer.pretokenizers[0].pattern.Regex must be a regular "
               "expression; is 3"},
        Change{"/pre_tokenizer/pretokenizers/0/pattern/Regex", "a\\w",
               "pre_tokenizer.pretokenizers[0].pattern.Regex: byte 1: '\\w' "
               "is not supported"},
        Change{"/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext",
               "pre_tokenizer.pretokenizers[0].behavior must be Isolated"},
        Change{"/pre_tokenizer/pretokenizers/1/use_regex", "no",
               "pre_tokenizer.pretokenizers[1].use_regex must be true or "
               "false; is \"no\""}));

INSTANTIATE_TEST_SUITE_P(
    Model, RefusalTest,
    ::testing::Values(
        Change{"/model", 3, "model must be an object; is 3"},
        Change{"/model/type", "Unigram",
               "model.type must be BPE; is \"Unigram\""},
        Change{"/model/type", 1, "model.type must be BPE; is 1"},
        Change{"/model/dropout", 0.1, "model.dropout must be null or 0.0; is"},
        Change{"/model/byte_fallback", true,
               "model.byte_fallback must be null or false; is true"},
        Change{"/model/end_of_word_suffix", "</w>",
               "model.end_of_word_suffix must be null or \"\"; is \"</w>\""},
        Change{"/model/ignore_merges", 1, "model.ignore_merges must be true"},
        Change{"/model/new_option", 1, "model has the field 'new_option'"},
        Change{"/model/vocab", Json::array({"a"}),
               "model.vocab must be an object of tokens and their ids"},
        Change{"/model/vocab",
               {{"a", 0}},
               "model.vocab has no token for the byte 0x00; it must have"},
        Change{"/model/vocab/he", "5",
               "model.vocab[\"he\"] must be a whole "
               "number in [0, 16777215]; is \"5\""},
        Change{"/model/vocab/he", -1, "model.vocab[\"he\"] must be a whole"},
        Change{"/model/vocab/he", 1.5, "model.vocab[\"he\"] must be a whole"},
        Change{"/model/vocab/he", uint64_t{1} << 63,
               "model.vocab[\"he\"] must be a whole"},
        Change{"/model/vocab/he", 1 << 24,
               "model.vocab[\"he\"] must be a whole"},
        Change{
            "/model/vocab/\uffff", 400,  // the last key
            "model.vocab[\"\\uffff\"] must be an id that no other token has"},
        Change{"/model/vocab/", 704, "model.vocab[\"\"] is empty"},
        Change{"/model/vocab/new", 706,
               "model.vocab must have a token for each id up to its largest, "
               "706; has none for 704"},
        Change{"/model/merges",
               {{"a", "b"}},
               "model.merges must be an array of at most 33554432"},
        Change{"/model/merges/3", Json::array({"q", "zq"}),
               "model.merges[3] must be two tokens of model.vocab that form a "
               "third, [\"a\", \"b\"] or \"a b\"; is \"q zq\""},
        Change{"/model/merges/3", Json::array({"zqzq", "e"}),
               "model.merges[3] must be two tokens"},
        Change{"/model/merges/3", Json::array({"h", "e", "l"}),
               "model.merges[3] must be two tokens"},
        Change{"/model/merges/3", "he", "model.merges[3] must be two tokens"},
        Change{"/model/merges/3", "h e l",
               "model.merges[3] must be two tokens"},
        Change{"/model/merges/3", 5, "model.merges[3] must be two tokens"}));

INSTANTIATE_TEST_SUITE_P(
    AddedTokens, RefusalTest,
    ::testing::Values(
        Change{"/added_tokens", 3, "added_tokens must be an array of at most"},
        Change{"/added_tokens/1", 3, "added_tokens[1] must be an object"},
        Change{"/added_tokens/1/id", -3, "added_tokens[1].id must be a whole"},
        Change{"/added_tokens/1/id", 99,
               "added_tokens[1].id must be 704, the id of this token in "
               "model.vocab, else the next one; is 99"},
        Change{"/added_tokens/0/id", 5, "added_tokens[0].id must be 0"},
        Change{"/added_tokens/1/id", 5, "added_tokens[1].id must be 704"},
        Change{"/added_tokens/1/id", 705, "added_tokens[1].id must be 704"},
        Change{"/added_tokens/2/id", 704, "added_tokens[2].id must be 705"},
        Change{"/added_tokens/2/id", 706, "added_tokens[2].id must be 705"},
        Change{"/added_tokens/1/content", "",
               "added_tokens[1].content must be a text; is \"\""},
        Change{"/added_tokens/1/content", "<|im_end|>",
               "added_tokens[2].content must be the text of no other"},
        Change{"/added_tokens/1/lstrip", true,
               "added_tokens[1].lstrip must be null or false; is true"},
        Change{"/added_tokens/1/special", 1,
               "added_tokens[1].special must be true or false; is 1"},
        Change{"/added_tokens/1/regex", 1,
               "added_tokens[1] has the field 'regex'"}));

TEST(TokenizerJsonTest, ReadsThePartsOfAFile) {
  const auto parsed = ParseTokenizerJson(FixtureText("llama3"));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_FALSE(parsed->nfc);
  EXPECT_TRUE(parsed->ignore_merges);
  ASSERT_EQ(parsed->pre_tokenizer.size(), 2u);
  EXPECT_EQ(parsed->pre_tokenizer[0].pattern, kLlama3Pattern);
  EXPECT_EQ(parsed->pre_tokenizer[1].pattern, "");
  ASSERT_EQ(parsed->added_tokens.size(), 3u);
  EXPECT_EQ(parsed->added_tokens[2].text, "<|im_end|>");
  EXPECT_TRUE(parsed->added_tokens[2].special);
  EXPECT_EQ(parsed->tokens[parsed->byte_ids[' ']], " ");
  EXPECT_EQ(parsed->tokens[parsed->byte_ids[0xff]], "\xff");
  const auto with_nfc = ParseTokenizerJson(FixtureText("qwen2"));
  ASSERT_THAT(with_nfc, IsOk());
  EXPECT_TRUE(with_nfc->nfc);
}

TEST(TokenizerJsonTest, RefusesEveryTruncation) {
  Json json = Fixture("stages");
  json["model"]["merges"] = Json::array();
  Json& vocabulary = json["model"]["vocab"];
  for (auto token = vocabulary.begin(); token != vocabulary.end();) {
    const bool is_byte = token.value() <= 256;
    token = is_byte ? std::next(token) : vocabulary.erase(token);
  }
  const std::string text = json.dump();
  ASSERT_THAT(ParseTokenizerJson(text), IsOk());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THAT(ParseTokenizerJson(text.substr(0, size)),
                Fails(StatusCode::kInvalidArgument, HasSubstr("not a JSON")))
        << size;
  }
}

TEST(TokenizerJsonTest, RefusesWhatIsNoObject) {
  const std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("7"), deep,
        deep + std::string(100000, ']'), std::string("{}\0{}", 5),
        std::string("\xff\xfe{}")}) {
    EXPECT_THAT(ParseTokenizerJson(text),
                Fails(StatusCode::kInvalidArgument,
                      HasSubstr("must be a tokenizer.json")));
  }
  Json json = Fixture("stages");
  Json nested;
  for (int i = 0; i < 100; ++i) nested = Json::array({nested});
  json["post_processor"] = nested;
  EXPECT_THAT(ParseTokenizerJson(json.dump()),
              Fails(StatusCode::kInvalidArgument, HasSubstr("not a JSON")));
}

TEST(TokenizerJsonTest, WritesWhatItReads) {
  TokenizerJson written = ParseTokenizerJson(FixtureText("gpt2")).value();
  for (const absl::string_view pattern : {kGpt2Pattern, kQwen2Pattern}) {
    written.pre_tokenizer[0].pattern = std::string(pattern);
    const auto read = ParseTokenizerJson(WriteTokenizerJson(written));
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->tokens, written.tokens);
    EXPECT_EQ(read->byte_ids, written.byte_ids);
    EXPECT_EQ(read->pre_tokenizer[0].pattern, pattern);
    EXPECT_EQ(WriteTokenizerJson(*read), WriteTokenizerJson(written));
  }
}

}  // namespace
}  // namespace tessera
