#include "framework/data/tokenize/tokenizer.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/data/data_config.pb.h"
#include "framework/data/tokenize/sentencepiece_tokenizer.h"
#include "framework/data/tokenize/utf8.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using testing::CppText;
using testing::Fails;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;

std::unique_ptr<Tokenizer> Train(const std::string& text, int vocab_size) {
  bool done = false;
  auto tokenizer = TrainBpe(
      vocab_size,
      [&]() -> std::optional<absl::string_view> {
        if (std::exchange(done, true)) return std::nullopt;
        return text;
      },
      "");
  EXPECT_THAT(tokenizer, IsOk());
  return *std::move(tokenizer);
}

const Tokenizer& Bpe() {
  static const Tokenizer* const tokenizer =
      Train(CppText(4000, 1), 600).release();
  return *tokenizer;
}

std::string EveryByte() {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

struct Text {
  std::string name;
  std::string text;
};

class RoundTripTest : public ::testing::TestWithParam<Text> {};

TEST_P(RoundTripTest, DecodesToTheSameBytes) {
  const std::string& text = GetParam().text;
  const auto bytes = CreateByteTokenizer();
  for (const Tokenizer* tokenizer :
       {&Bpe(), static_cast<const Tokenizer*>(bytes.get())}) {
    const auto ids = tokenizer->Encode(text);
    ASSERT_THAT(ids, IsOk());
    for (const int32_t id : *ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, tokenizer->vocab_size());
      EXPECT_NE(id, tokenizer->eos_id());
    }
    const auto decoded = tokenizer->Decode(*ids);
    ASSERT_THAT(decoded, IsOk());
    EXPECT_EQ(*decoded, text);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Texts, RoundTripTest,
    ::testing::ValuesIn(std::vector<Text>{
        {"Empty", ""},
        {"Cpp", CppText(200, 2)},
        {"Tabs", "\tif (x) {\n\t\treturn\ty;\n\t}\n"},
        {"Indentation", "  a\n    b\n                                c\n"},
        {"Spaces", "   leading, inner   and trailing   \n  \n   "},
        {"OneSpace", " "},
        {"BlankLines", "\n\n\na\n\n"},
        {"CrLf", "int a;\r\nint b;\r\n\r\n"},
        {"Utf8", "// Größe ≤ 10 µs — 漢字 🚀 e\xcc\x81\n"},
        // NFKC would change all of these.
        {"Compatibility", "ﬁ ① ½ \xc2\xa0 \xe2\x80\x83 ｆｕｌｌ"},
        // The character that SentencePiece uses for a space.
        {"SpacePiece",
         "a\xe2\x96\x81 \xe2\x96\x81\xe2\x96\x81"
         "b"},
        {"PieceNames", "<0x0A><s></s><unk><|endoftext|>"},
        {"InvalidUtf8", "ok \xff\xfe bad \xc3( \xe2\x96 cut \xf0\x9f\x9a"},
        {"EveryByte", EveryByte() + EveryByte()},
        {"Null", std::string("a\0b\0\0", 5)},
    }),
    [](const auto& info) { return info.param.name; });

TEST(BpeTest, WordCacheChangesNothing) {
  // Encoding each word separately starts with an empty cache.
  const std::string text = CppText(300, 3);
  std::vector<int32_t> by_word;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find_first_not_of(' ', begin);
    end = std::min(text.find_first_of(" \n", end), text.size());
    if (end == begin) ++end;
    const auto ids = Bpe().Encode(text.substr(begin, end - begin));
    ASSERT_THAT(ids, IsOk());
    by_word.insert(by_word.end(), ids->begin(), ids->end());
    begin = end;
  }
  const auto whole = Bpe().Encode(text);
  ASSERT_THAT(whole, IsOk());
  EXPECT_EQ(*whole, by_word);
}

TEST(BpeTest, SaysHowLargeAVocabularyTheCharactersNeed) {
  std::string text;
  for (int i = 0; i < 100; ++i) {  // 100 characters from U+4E00
    text += {'\xe4', static_cast<char>(0xb8 + i / 50),
             static_cast<char>(0x80 + i % 50)};
  }
  bool done = false;
  const auto tokenizer = TrainBpe(
      300,
      [&]() -> std::optional<absl::string_view> {
        if (std::exchange(done, true)) return std::nullopt;
        return text;
      },
      "change it");
  EXPECT_THAT(tokenizer, Fails(StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("100 distinct characters"),
                                     HasSubstr("take 358; change it"),
                                     Not(HasSubstr("coverage")))));
  EXPECT_EQ(Train(text, 358)->vocab_size(), 358);
}

TEST(BpeTest, CompressesItsLanguage) {
  const std::string text = CppText(1000, 4);
  const auto ids = Bpe().Encode(text);
  ASSERT_THAT(ids, IsOk());
  EXPECT_LT(ids->size(), text.size() / 3);
}

TEST(BpeTest, LearnsRunsOfSpaces) {
  const auto one = Bpe().Encode(" ");
  const auto eight = Bpe().Encode("        ");
  ASSERT_THAT(one, IsOk());
  ASSERT_THAT(eight, IsOk());
  EXPECT_EQ(one->size(), 1u);
  EXPECT_LT(eight->size(), 8u);
}

TEST(BpeTest, IsDeterministicAndSerializable) {
  const std::string text = CppText(2000, 5);
  const auto first = Train(text, 500);
  const auto second = Train(text, 500);
  EXPECT_EQ(first->Serialize(), second->Serialize());
  EXPECT_EQ(first->vocab_size(), 500);
  const auto loaded =
      LoadTokenizer(TokenizerKind::kBpe, first->Serialize(), "");
  ASSERT_THAT(loaded, IsOk());
  const auto ids = first->Encode(text);
  const auto loaded_ids = (*loaded)->Encode(text);
  ASSERT_THAT(ids, IsOk());
  ASSERT_THAT(loaded_ids, IsOk());
  EXPECT_EQ(*ids, *loaded_ids);
  EXPECT_EQ((*loaded)->eos_id(), first->eos_id());
}

TEST(BpeTest, LearnsFromLinesOfAnyLength) {
  // A long line that can be cut gives the same pieces as short lines.
  std::string words, lines, longer, other;
  for (int i = 0; words.size() < 50000; ++i) {
    absl::StrAppend(&words, "  word", i % 700, " of", i % 30);
    absl::StrAppend(&lines, "  word", i % 700, " of", i % 30, "\n");
  }
  EXPECT_EQ(Train(words, 600)->Serialize(), Train(lines, 600)->Serialize());
  // Without spaces, cut between characters; each has its own piece.
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&longer, "x漢", i % 10, "🚀");
  const auto tokenizer = Train(longer, 300);
  for (const char* character : {"x", "漢", "🚀"}) {
    EXPECT_EQ(tokenizer->Encode(character).value().size(), 1u) << character;
  }
  // Without a place to cut before a run of spaces, or in a word: 4192 bytes at
  // a time.
  other = std::string(10000, ' ') + std::string(10000, 'a');
  EXPECT_EQ(Train(other, 300)->Encode(other.substr(0, 16)).value().size(), 1u);
}

TEST(BpeTest, LearnsFromLinesWithTheUnknownPiece) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "disk [▅▅▁] used\n";
  const auto tokenizer = Train(text, 300);
  EXPECT_EQ(tokenizer->Encode("disk").value().size(), 1u);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text).value()).value(), text);
}

TEST(BpeTest, AShortTextYieldsFewerPieces) {
  const auto tokenizer = Train("int main() { return 0; }\n", 10000);
  EXPECT_GT(tokenizer->vocab_size(), 256);
  EXPECT_LT(tokenizer->vocab_size(), 400);
}

TEST(BpeTest, EncodesOnManyThreads) {
  const std::string text = CppText(500, 6);
  const auto expected = Bpe().Encode(text);
  ASSERT_THAT(expected, IsOk());
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] { result = Bpe().Encode(text).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, *expected);
}

TEST(BpeTest, RefusesBadInput) {
  const TextStream none = [] { return std::nullopt; };
  EXPECT_THAT(TrainBpe(256, none, ""),
              Fails(StatusCode::kInvalidArgument, HasSubstr("at least 300")));
  EXPECT_THAT(TrainBpe(1000, none, ""),
              Fails(StatusCode::kInvalidArgument, HasSubstr("cannot learn")));
  const std::string controls("\n\n\0\xff\n", 5);
  bool done = false;
  const TextStream nothing_clean = [&]() -> std::optional<absl::string_view> {
    if (std::exchange(done, true)) return std::nullopt;
    return controls;
  };
  EXPECT_THAT(TrainBpe(1000, nothing_clean, ""),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("nothing but control characters"),
                          HasSubstr("--tokenizer=bytes"))));
  EXPECT_THAT(LoadBpe("not a model"),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("not a SentencePiece model")));
}

TEST(TokenizerTest, EndOfDocumentHasNoText) {
  const auto bytes = CreateByteTokenizer();
  EXPECT_EQ(bytes->eos_id(), 256);
  EXPECT_EQ(bytes->vocab_size(), 257);
  EXPECT_EQ(bytes->Decode({'a', 256, 'b'}).value(), "ab");
  EXPECT_EQ(Bpe().Decode({Bpe().eos_id()}).value(), "");
}

TEST(TokenizerTest, RefusesIdsOutsideTheVocabulary) {
  const auto bytes = CreateByteTokenizer();
  EXPECT_THAT(bytes->Decode({257}),
              Fails(StatusCode::kOutOfRange, HasSubstr("257")));
  EXPECT_THAT(bytes->Decode({-1}),
              Fails(StatusCode::kOutOfRange, HasSubstr("-1")));
  const auto end = static_cast<int32_t>(Bpe().vocab_size());
  EXPECT_THAT(Bpe().Decode({end}),
              Fails(StatusCode::kOutOfRange, HasSubstr("vocabulary of 600")));
}

TEST(TokenizerTest, KindsHaveNames) {
  for (const auto kind : {TokenizerKind::kBpe, TokenizerKind::kBytes,
                          TokenizerKind::kByteLevelBpe}) {
    EXPECT_EQ(TokenizerKindFromName(Name(kind)).value(), kind);
  }
  EXPECT_THAT(TokenizerKindFromName("gpt2"),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("use bpe, bytes or byte_level_bpe")));
}

// SentencePiece has its own Protocol Buffers and Abseil, LibTorch a third
// Protocol Buffers. This uses all of them alternately in one process.
TEST(SymbolScopeTest, SentencePieceCoexistsWithProtobufAndLibTorch) {
  for (int i = 0; i < 3; ++i) {
    DataConfig config;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
        "token_files { train: 'a' train: 'b' } shuffle: false", &config));
    const auto tokenizer = Train(CppText(500, 10 + i), 400);
    EXPECT_EQ(at::ones({3, 4}).sum().item<float>(), 12);
    std::string text;
    ASSERT_TRUE(google::protobuf::TextFormat::PrintToString(config, &text));
    const auto ids = tokenizer->Encode(text);
    ASSERT_THAT(ids, IsOk());
    EXPECT_EQ(tokenizer->Decode(*ids).value(), text);
    DataConfig parsed;
    ASSERT_TRUE(parsed.ParseFromString(config.SerializeAsString()));
    EXPECT_EQ(parsed.token_files().train(1), "b");
  }
}

TEST(Utf8Test, FindsTheBeginningOfACharacter) {
  for (const auto& [text, bytes] : std::vector<std::pair<std::string, size_t>>{
           {"", 0},
           {"a", 0},
           {"\xc3\xa9", 0},
           {"a\xc3", 1},
           {"\xe2", 1},
           {"a\xe2\x96", 2},
           {"\xf0\x9f\x9a", 3},
           {"\xf0\x9f\x9a\x80", 0},
           // Bytes that no continuation makes a character.
           {"\x96\x96\x96", 0},
           {"\xe0\x80", 0},
           {"\xf0\x9f\xff", 0},
           {"\xff", 0}}) {
    EXPECT_EQ(Utf8UnfinishedBytes(text), bytes) << text;
  }
}

TEST(Utf8Test, NamesTheFirstByteThatIsWrong) {
  EXPECT_EQ(Utf8Fault("caf\xc3\xa9"), "");
  EXPECT_EQ(Utf8Fault("caf\xe9 \xe9"), "byte 3: 0xe9 is not UTF-8");
}

TEST(Utf8Test, AcceptsExactlyRfc3629) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("plain ASCII that is longer than eight bytes"));
  EXPECT_TRUE(IsUtf8("\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf"));
  EXPECT_TRUE(IsUtf8("\xee\x80\x80 \xef\xbf\xbf \xf0\x90\x80\x80"));
  EXPECT_TRUE(IsUtf8("\xf4\x8f\xbf\xbf"));
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf",
        "\xe1\x80", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf0\x9f\x9a",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_FALSE(IsUtf8(bad));
    EXPECT_FALSE(IsUtf8(std::string("12345678") + bad));
    EXPECT_EQ(Utf8CharacterBytes(bad), 0);
  }
}

}  // namespace
}  // namespace tessera
