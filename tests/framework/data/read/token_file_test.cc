#include "framework/data/read/token_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
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

template <typename Token = uint16_t>
std::string LlmC(std::vector<int32_t> header_begin,
                 const std::vector<Token>& tokens) {
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
  EXPECT_THAT(file.Read(0, absl::MakeSpan(tokens)), IsOk());
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

  auto file = TokenFile::Open(path, TokenFileFormat::kDetect);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kTessera);
  EXPECT_THAT(ReadAll(*file), ElementsAre(4, last, 0));
  EXPECT_EQ(summary->tokens, 3);
  EXPECT_EQ(summary->checksum, file->checksum().value());
  EXPECT_THAT(file->VerifyChecksum(), IsOk());
  EXPECT_THAT(file->LimitTokens(vocab_size), IsOk());
  const int64_t width = vocab_size <= 65536 ? 2 : 4;
  EXPECT_THAT(
      file->LimitTokens(vocab_size - 1),
      Fails(StatusCode::kOutOfRange,
            AllOf(HasSubstr(absl::StrCat(path, ", byte ", kHeaderBytes + width,
                                         ": token 1 is ", last)),
                  HasSubstr("model.vocab_size"))));
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, ShardWidthTest,
                         ::testing::Values(6, 65536, 65537, 1 << 20));

// Files are read in blocks of 1 MiB.
TEST(TokenFileTest, FindsATooLargeTokenAfterTheFirstBlock) {
  std::vector<int32_t> tokens(1'500'000, 1);
  const std::string path = TestPath("a.tok");
  for (const int64_t place : {0, 31, 77777, 524287, 524288, 1499999}) {
    tokens[place] = 9;
    remove(path.c_str());
    WriteShard(path, 10, tokens);
    tokens[place] = 1;
    auto file = TokenFile::Open(path, TokenFileFormat::kTessera);
    ASSERT_THAT(file, IsOk());
    EXPECT_THAT(file->VerifyChecksum(), IsOk());
    EXPECT_THAT(file->LimitTokens(10), IsOk());
    EXPECT_THAT(file->LimitTokens(9),
                Fails(StatusCode::kOutOfRange,
                      HasSubstr(absl::StrCat("byte ", kHeaderBytes + 2 * place,
                                             ": token ", place, " is 9"))));
  }
}

TEST(TokenFileTest, DetectsTruncationOfAnOpenFile) {
  const std::string path = TestPath("train.bin");
  Write(path, Bytes(std::vector<uint16_t>(20000, 7)));
  auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(truncate(path.c_str(), 10001), 0);
  std::vector<int64_t> tokens(5000);
  EXPECT_THAT(file->Read(0, absl::MakeSpan(tokens)), IsOk());
  const auto shortened =
      Fails(StatusCode::kDataLoss,
            AllOf(HasSubstr(path + ", byte 10001: past the end of the file"),
                  HasSubstr("had 40000 bytes when it was opened and now has "
                            "10001")));
  EXPECT_THAT(file->Read(1, absl::MakeSpan(tokens)), shortened);
  EXPECT_THAT(file->checksum(), shortened);
  EXPECT_THAT(file->LimitTokens(8), shortened);
}

TEST(TokenFileTest, DetectsTokensThatBecomeTooLargeInAnOpenFile) {
  const std::string path = TestPath("train.bin");
  std::vector<uint16_t> tokens(20000, 7);
  Write(path, Bytes(tokens));
  auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT(file->LimitTokens(300), IsOk());
  tokens[15000] = 300;
  Write(path, Bytes(tokens));
  std::vector<int64_t> read(15000);
  EXPECT_THAT(file->Read(0, absl::MakeSpan(read)), IsOk());
  EXPECT_THAT(
      file->Read(1, absl::MakeSpan(read)),
      Fails(StatusCode::kDataLoss,
            HasSubstr(path + ", byte 30000: token 15000 is 300, but every "
                             "token was below 300 when the file was opened")));
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

TEST(TokenFileTest, DetectsEveryFlippedByteOfAShard) {
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
  auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kNanoGpt);
  EXPECT_THAT(ReadAll(*file), ElementsAre(50256, 1, 65535));
  EXPECT_THAT(file->LimitTokens(50257),
              Fails(StatusCode::kOutOfRange, HasSubstr("byte 4: token 2")));
}

TEST(TokenFileTest, ReadsLlmC) {
  const std::string path = TestPath("train.bin");
  Write(path, LlmC({20240520, 1, 3}, {7, 8, 9}));
  auto file = TokenFile::Open(path, TokenFileFormat::kDetect);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kLlmC);
  EXPECT_THAT(ReadAll(*file), ElementsAre(7, 8, 9));
  EXPECT_THAT(file->LimitTokens(9),
              Fails(StatusCode::kOutOfRange, HasSubstr("byte 1028: token 2")));
}

TEST(TokenFileTest, ReadsLlmCWithTheTokensOfLlama3) {
  const std::string path = TestPath("train.bin");
  Write(path, LlmC<uint32_t>({20240801, 7, 3}, {7, 128255, 9}));
  auto file = TokenFile::Open(path, TokenFileFormat::kDetect);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->format(), TokenFileFormat::kLlmC);
  EXPECT_THAT(ReadAll(*file), ElementsAre(7, 128255, 9));
  EXPECT_THAT(file->LimitTokens(128256), IsOk());
  EXPECT_THAT(file->LimitTokens(128255),
              Fails(StatusCode::kOutOfRange,
                    HasSubstr("byte 1028: token 1 is 128255")));
}

// In a list of files, some with a magic number, the format applies to the
// others.
TEST(TokenFileTest, NanoGptIsTheFormatOfFilesWithoutAMagicNumber) {
  const std::string path = TestPath("train.bin");
  Write(path, LlmC({20240520, 1, 3}, {7, 8, 9}));
  const auto llmc = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(llmc, IsOk());
  EXPECT_EQ(llmc->format(), TokenFileFormat::kLlmC);
  EXPECT_THAT(ReadAll(*llmc), ElementsAre(7, 8, 9));
  const auto shard = TokenFile::Open(WriteShard(TestPath("a.tok"), 10, {4, 5}),
                                     TokenFileFormat::kNanoGpt);
  ASSERT_THAT(shard, IsOk());
  EXPECT_EQ(shard->format(), TokenFileFormat::kTessera);
  EXPECT_THAT(ReadAll(*shard), ElementsAre(4, 5));
}

TEST(TokenFileTest, OpensMoreFilesThanTheSoftLimit) {
  const std::string path = TestPath("train.bin");
  Write(path, Bytes<uint16_t>({1, 2}));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 40;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<TokenFile> files;
  for (int i = 0; i < 100; ++i) {
    auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
    EXPECT_THAT(file, IsOk());
    if (file.ok()) files.push_back(*std::move(file));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(files.size(), 100u);
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
        {"Llama3Version", TokenFileFormat::kDetect,
         LlmC<uint32_t>({20240801, 1, 1}, {1}), "byte 4: llm.c version 1"},
        {"Llama3Cut", TokenFileFormat::kNanoGpt,
         LlmC<uint32_t>({20240801, 7, 3}, {1, 2}),
         "its header says 3 tokens of 4 bytes"},
        {"LlmCMagic", TokenFileFormat::kLlmC, LlmC({20240521, 1, 1}, {1}),
         "byte 0: has no magic number of llm.c"},
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

TEST(TokenFileTest, NamesAMissingFileOrOneThatIsNotAFile) {
  EXPECT_THAT(TokenFile::Open(TestPath("no.bin"), TokenFileFormat::kDetect),
              Fails(StatusCode::kNotFound, HasSubstr("no.bin")));
  EXPECT_THAT(TokenFile::Open(TestPath(""), TokenFileFormat::kDetect),
              Fails(StatusCode::kInvalidArgument, HasSubstr("is not a file")));
}

}  // namespace
}  // namespace tessera
