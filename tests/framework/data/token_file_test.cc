#include "framework/data/token_file.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using testing::Bytes;
using ::testing::ElementsAre;
using testing::Fails;
using testing::FlipByte;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Read;
using testing::TestPath;
using testing::Write;

constexpr int64_t kHeaderBytes = 64;

std::string LlmC(std::vector<int32_t> header_begin,
                 const std::vector<uint16_t>& tokens) {
  header_begin.resize(256);
  return Bytes(header_begin) + Bytes(tokens);
}

std::string WriteShard(const std::string& path, int64_t vocab_size,
                       const std::vector<int32_t>& tokens) {
  auto writer = TokenFileWriter::Create(path, vocab_size);
  EXPECT_THAT(writer, IsOk());
  EXPECT_THAT((*writer)->Append(tokens), IsOk());
  EXPECT_THAT((*writer)->Finish(), IsOk());
  return path;
}

std::vector<int64_t> ReadAll(const TokenFile& file) {
  std::vector<int64_t> tokens(file.tokens());
  file.Read(0, absl::MakeSpan(tokens));
  return tokens;
}

class ShardWidthTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ShardWidthTest, ReadsBackWhatWasWritten) {
  const int64_t vocab_size = GetParam();
  const std::string path = TestPath("a.tok");
  auto writer = TokenFileWriter::Create(path, vocab_size);
  ASSERT_THAT(writer, IsOk());
  const auto last = static_cast<int32_t>(vocab_size - 1);
  ASSERT_THAT((*writer)->Append({4, last}), IsOk());
  ASSERT_THAT((*writer)->Append({}), IsOk());
  ASSERT_THAT((*writer)->Append({0}), IsOk());
  const auto summary = (*writer)->Finish();
  ASSERT_THAT(summary, IsOk());

  const auto file = TokenFile::Open(path, TokenFileFormat::kDetect);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kTessera);
  EXPECT_THAT(ReadAll(*file), ElementsAre(4, last, 0));
  EXPECT_EQ(summary->tokens, 3);
  EXPECT_EQ(summary->checksum, file->checksum());
  EXPECT_THAT(file->VerifyChecksum(), IsOk());
  EXPECT_THAT(file->CheckTokens(vocab_size), IsOk());
  const int64_t width = vocab_size <= 65536 ? 2 : 4;
  EXPECT_THAT(
      file->CheckTokens(vocab_size - 1),
      Fails(StatusCode::kOutOfRange,
            AllOf(HasSubstr(absl::StrCat(path, ", byte ", kHeaderBytes + width,
                                         ": token 1 is ", last)),
                  HasSubstr("model.vocab_size"))));
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, ShardWidthTest,
                         ::testing::Values(6, 65536, 65537, 1 << 20));

TEST(TokenFileTest, FindsATooLargeTokenBehindTheFirstBlock) {
  std::vector<int32_t> tokens(100000, 1);
  tokens[77777] = 9;
  const std::string path = WriteShard(TestPath("a.tok"), 10, tokens);
  const auto file = TokenFile::Open(path, TokenFileFormat::kTessera);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->CheckTokens(9),
              Fails(StatusCode::kOutOfRange,
                    HasSubstr(absl::StrCat("byte ", kHeaderBytes + 2 * 77777,
                                           ": token 77777 is 9"))));
}

TEST(TokenFileTest, RefusesAShardCutAtEveryByte) {
  const std::string path = WriteShard(TestPath("a.tok"), 10, {1, 2, 3, 4});
  const std::string whole = Read(path);
  ASSERT_EQ(whole.size(), kHeaderBytes + 8);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    Write(path, whole.substr(0, bytes));
    EXPECT_THAT(TokenFile::Open(path, TokenFileFormat::kTessera),
                Fails(StatusCode::kInvalidArgument, HasSubstr(path)))
        << "cut to " << bytes << " bytes";
  }
  Write(path, whole + "x");
  EXPECT_THAT(TokenFile::Open(path, TokenFileFormat::kTessera),
              Fails(StatusCode::kInvalidArgument, HasSubstr("too long")));
}

TEST(TokenFileTest, NoticesEveryFlippedByteOfAShard) {
  const std::string path = WriteShard(TestPath("a.tok"), 10, {1, 2, 3, 4});
  const size_t size = Read(path).size();
  for (size_t offset = 0; offset < size; ++offset) {
    FlipByte(path, offset);
    const auto file = TokenFile::Open(path, TokenFileFormat::kTessera);
    if (file.ok()) {
      EXPECT_THAT(file->VerifyChecksum(),
                  Fails(StatusCode::kDataLoss, HasSubstr(path)))
          << "byte " << offset;
    }
    FlipByte(path, offset);
  }
}

TEST(TokenFileTest, RefusesAShardThatWasNotFinished) {
  const std::string path = TestPath("a.tok");
  {
    auto writer = TokenFileWriter::Create(path, 10);
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->Append({1, 2}), IsOk());
  }
  EXPECT_THAT(TokenFile::Open(path, TokenFileFormat::kTessera),
              Fails(StatusCode::kInvalidArgument, HasSubstr("not finished")));
}

TEST(TokenFileTest, WriterDoesNotOverwrite) {
  const std::string path = WriteShard(TestPath("a.tok"), 10, {1, 2});
  EXPECT_THAT(TokenFileWriter::Create(path, 10),
              Fails(StatusCode::kAlreadyExists, HasSubstr(path)));
}

TEST(TokenFileTest, ReadsNanoGpt) {
  const std::string path = TestPath("train.bin");
  Write(path, Bytes<uint16_t>({50256, 1, 65535}));
  const auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(ReadAll(*file), ElementsAre(50256, 1, 65535));
  EXPECT_THAT(file->CheckTokens(50257),
              Fails(StatusCode::kOutOfRange, HasSubstr("byte 4: token 2")));
}

TEST(TokenFileTest, ReadsLlmC) {
  const std::string path = TestPath("train.bin");
  Write(path, LlmC({20240520, 1, 3}, {7, 8, 9}));
  const auto file = TokenFile::Open(path, TokenFileFormat::kDetect);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kLlmC);
  EXPECT_THAT(ReadAll(*file), ElementsAre(7, 8, 9));
  EXPECT_THAT(file->CheckTokens(9),
              Fails(StatusCode::kOutOfRange, HasSubstr("byte 1028: token 2")));
}

struct Malformed {
  std::string name;
  TokenFileFormat format;
  std::string contents;
  std::string message;
};

class MalformedFileTest : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedFileTest, IsRefused) {
  const std::string path = TestPath("bad.bin");
  Write(path, GetParam().contents);
  EXPECT_THAT(TokenFile::Open(path, GetParam().format),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(path), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, MalformedFileTest,
    ::testing::ValuesIn(std::vector<Malformed>{
        {"Empty", TokenFileFormat::kDetect, "", "byte 0: the file is empty"},
        {"EmptyNanoGpt", TokenFileFormat::kNanoGpt, "", "the file is empty"},
        {"Unknown", TokenFileFormat::kDetect, "text", "format = NANOGPT"},
        {"NanoGptOdd", TokenFileFormat::kNanoGpt, "abc",
         "byte 2: the last uint16 token is cut in half"},
        {"NanoGptIsLlmC", TokenFileFormat::kNanoGpt,
         LlmC({20240520, 1, 1}, {1}), "has a header"},
        {"LlmCMagic", TokenFileFormat::kLlmC, LlmC({20240521, 1, 1}, {1}),
         "byte 0: not llm.c's magic number"},
        {"LlmCVersion", TokenFileFormat::kLlmC, LlmC({20240520, 7, 1}, {1}),
         "byte 4: llm.c version 7"},
        {"LlmCNegative", TokenFileFormat::kLlmC, LlmC({20240520, 1, -1}, {1}),
         "byte 8: -1 tokens"},
        {"LlmCNone", TokenFileFormat::kLlmC, LlmC({20240520, 1, 0}, {}),
         "byte 1024: holds no tokens"},
        {"LlmCCut", TokenFileFormat::kLlmC, LlmC({20240520, 1, 3}, {1, 2}),
         "byte 1028: the file ends here"},
        {"LlmCHalfToken", TokenFileFormat::kLlmC,
         LlmC({20240520, 1, 2}, {1, 2}).substr(0, 1027), "truncated"},
        {"LlmCHeaderCut", TokenFileFormat::kLlmC,
         LlmC({20240520, 1, 2}, {}).substr(0, 1000), "byte 1000: truncated"},
        {"LlmCTooLong", TokenFileFormat::kLlmC, LlmC({20240520, 1, 1}, {1, 2}),
         "too long"},
        {"TesseraVersion", TokenFileFormat::kDetect,
         std::string("TESSTOK\0\2\0\0\0", 12) + std::string(52, '\0'),
         "byte 8: version 2"},
        {"TesseraWidth", TokenFileFormat::kDetect,
         std::string("TESSTOK\0\1\0\0\0\3", 13) + std::string(51, '\0'),
         "byte 12: 3 bytes per token"},
        {"TesseraHugeCount", TokenFileFormat::kDetect,
         std::string("TESSTOK\0\1\0\0\0\2\0\0\0", 16) + std::string(8, '\xff') +
             std::string(42, '\0'),
         "truncated"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(TokenFileTest, SaysWhichFileIsMissingOrNoFile) {
  EXPECT_THAT(TokenFile::Open(TestPath("no.bin"), TokenFileFormat::kDetect),
              Fails(StatusCode::kNotFound, HasSubstr("no.bin")));
  EXPECT_THAT(TokenFile::Open(TestPath(""), TokenFileFormat::kDetect),
              Fails(StatusCode::kInvalidArgument, HasSubstr("is not a file")));
}

}  // namespace
}  // namespace tessera
