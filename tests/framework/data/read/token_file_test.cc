#include "framework/data/read/token_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using testing::Bytes;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Fails;
using testing::FlipByte;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

std::vector<int64_t> DocumentStarts(const std::vector<uint16_t>& tokens,
                                    const EndOfText& end_of_text) {
  const std::string path = TestPath("train.bin");
  Write(path, Bytes(tokens));
  auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  EXPECT_THAT(file, IsOk());
  EXPECT_THAT(file->LimitTokens(50257, end_of_text), IsOk());
  return file->TakeDocumentStarts();
}

TEST(TokenFileTest, FindsTheDocumentsThatATokenDivides) {
  const EndOfText before = {9, /*is_before=*/true};
  const EndOfText after = {9, /*is_before=*/false};
  EXPECT_THAT(DocumentStarts({9, 1, 2, 9, 9, 3}, before), ElementsAre(3, 4));
  EXPECT_THAT(DocumentStarts({1, 2, 9, 9, 3, 9}, after), ElementsAre(3, 4));
  EXPECT_THAT(DocumentStarts({1, 9}, before), ElementsAre(1));
  EXPECT_THAT(DocumentStarts({9, 1}, after), ElementsAre(1));
  // Each document begins with 9, or with 1 and 9.
  EXPECT_THAT(DocumentStarts({9, 1, 2, 9, 9, 3, 9}, {9, false, 1}),
              ElementsAre(4));
  EXPECT_THAT(DocumentStarts({1, 9, 2, 9, 1, 9, 3, 9}, {9, false, 2}),
              ElementsAre(4));
  EXPECT_THAT(DocumentStarts({9}, before), IsEmpty());
  EXPECT_THAT(DocumentStarts({9}, after), IsEmpty());
  // Equal to 9 in the lowest 16 bits.
  EXPECT_THAT(DocumentStarts({1, 9, 1}, {65536 + 9, true}), IsEmpty());
  // Files are read in blocks of 1 MiB.
  std::vector<uint16_t> tokens(1'500'000, 1);
  std::vector<int64_t> expected = {31, 77777, 524287, 524288, 1499999};
  for (const int64_t place : expected) tokens[place] = 9;
  EXPECT_EQ(DocumentStarts(tokens, before), expected);
  expected.pop_back();
  for (int64_t& place : expected) ++place;
  EXPECT_EQ(DocumentStarts(tokens, after), expected);
}

TEST(TokenFileTest, KnowsTheEndOfTextOfItsFormat) {
  const auto end_of_text = [](const std::string& contents) {
    Write(TestPath("a.bin"), contents);
    const auto file =
        TokenFile::Open(TestPath("a.bin"), TokenFileFormat::kNanoGpt);
    EXPECT_THAT(file, IsOk());
    return file->end_of_text();
  };
  EXPECT_EQ(end_of_text(Bytes<uint16_t>({1})), (EndOfText{50256, false}));
  EXPECT_EQ(end_of_text(LlmC({20240520, 1, 1}, {1})), (EndOfText{50256, true}));
  EXPECT_EQ(end_of_text(LlmC<uint32_t>({20240801, 7, 1}, {1})),
            (EndOfText{128000, true}));
  EXPECT_EQ(end_of_text(Read(WriteShard(TestPath("a.tok"), 10, {1}))),
            std::nullopt);
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

std::string MegatronFixture(absl::string_view file) {
  return absl::StrCat("tests/framework/data/read/megatron/", file);
}

// What Megatron's own writer wrote: see megatron/make_fixtures.py.
class MegatronTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MegatronTest, ReadsTokensAndDocuments) {
  const std::string name = MegatronFixture(GetParam());
  for (const auto& [path, format] :
       {std::pair{name + ".bin", TokenFileFormat::kDetect},
        {name + ".idx", TokenFileFormat::kDetect},
        {name + ".bin", TokenFileFormat::kNanoGpt},
        {name, TokenFileFormat::kMegatron}}) {
    auto file = TokenFile::Open(path, format);
    ASSERT_THAT(file, IsOk()) << path;
    EXPECT_EQ(file->format(), TokenFileFormat::kMegatron);
    EXPECT_EQ(file->path(), name + ".bin");
    EXPECT_THAT(ReadAll(*file),
                ElementsAre(11, 12, 13, 14, 15, 16, 17, 100, 19, 20, 21));
    EXPECT_EQ(file->end_of_text(), std::nullopt);
    EXPECT_THAT(file->LimitTokens(101), IsOk());
    EXPECT_THAT(ReadAll(*file), Contains(100));
    const int64_t width = static_cast<int64_t>(Read(name + ".bin").size()) / 11;
    EXPECT_THAT(
        file->LimitTokens(100),
        Fails(StatusCode::kOutOfRange,
              HasSubstr(absl::StrCat("byte ", 7 * width, ": token 7 is 100"))));
    // The empty document begins where the next one does.
    EXPECT_THAT(file->TakeDocumentStarts(), ElementsAre(3, 4, 10));
    EXPECT_THAT(file->LimitTokens(101, EndOfText{16, false}), IsOk());
    EXPECT_THAT(file->TakeDocumentStarts(), ElementsAre(6));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MegatronTest,
                         ::testing::Values("uint8", "int8", "int16", "int32",
                                           "int64", "uint16"),
                         [](const auto& info) { return info.param; });

TEST(MegatronFileTest, RefusesNegativeTokens) {
  for (const auto& [type, minus_one] :
       {std::pair<std::string, std::string>{"int8", Bytes<int8_t>({-1})},
        {"int16", Bytes<int16_t>({-1})},
        {"int32", Bytes<int32_t>({-1})},
        {"int64", Bytes<int64_t>({-1})}}) {
    std::string tokens = Read(MegatronFixture(type + ".bin"));
    const size_t byte = 4 * minus_one.size();
    Write(TestPath("a.bin"), tokens.replace(byte, minus_one.size(), minus_one));
    Write(TestPath("a.idx"), Read(MegatronFixture(type + ".idx")));
    auto file = TokenFile::Open(TestPath("a.bin"), TokenFileFormat::kDetect);
    ASSERT_THAT(file, IsOk());
    EXPECT_THAT(file->LimitTokens(1000),
                Fails(StatusCode::kOutOfRange,
                      HasSubstr(absl::StrCat("a.bin, byte ", byte,
                                             ": token 4 is -1"))));
  }
}

// A .bin without an index, or next to another program's .idx, is no dataset of
// Megatron.
TEST(MegatronFileTest, IsDetectedByTheMagicNumberOfTheIndex) {
  Write(TestPath("a.bin"), Bytes<uint16_t>({1, 2}));
  const auto format = [] {
    const auto file =
        TokenFile::Open(TestPath("a.bin"), TokenFileFormat::kNanoGpt);
    EXPECT_THAT(file, IsOk());
    return file->format();
  };
  EXPECT_EQ(format(), TokenFileFormat::kNanoGpt);
  Write(TestPath("a.idx"), "MMIDID");
  EXPECT_EQ(format(), TokenFileFormat::kNanoGpt);
  EXPECT_THAT(
      TokenFile::Open(TestPath("a.bin"), TokenFileFormat::kMegatron),
      Fails(StatusCode::kInvalidArgument, HasSubstr("a.idx, byte 0: has no")));
  EXPECT_THAT(TokenFile::Open(TestPath("b.idx"), TokenFileFormat::kDetect),
              Fails(StatusCode::kNotFound, HasSubstr("b.bin")));
}

// The index of int32.bin: 5 sequences in 5 documents, 142 bytes. Lengths are at
// byte 34, pointers at 54, documents at 94.
struct MalformedIndex {
  std::string name;
  size_t offset;
  std::string bytes;  // replace those at `offset`
  std::string message;
};

class MalformedIndexTest : public ::testing::TestWithParam<MalformedIndex> {};

TEST_P(MalformedIndexTest, IsRefused) {
  std::string index = Read(MegatronFixture("int32.idx"));
  ASSERT_EQ(index.size(), 142u);
  const std::string& bytes = GetParam().bytes;
  Write(TestPath("a.idx"),
        index.replace(GetParam().offset, bytes.size(), bytes));
  Write(TestPath("a.bin"), Read(MegatronFixture("int32.bin")));
  EXPECT_THAT(TokenFile::Open(TestPath("a.idx"), TokenFileFormat::kDetect),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr(TestPath("a.idx, byte ") + GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, MalformedIndexTest,
    ::testing::ValuesIn(std::vector<MalformedIndex>{
        {"Magic", 0, "X", "0: has no magic number"},
        {"Version", 9, "\2", "9: Megatron index of version 2"},
        {"Float64", 17, "\6", "17: tokens of type 6 (float64)"},
        {"Float32", 17, "\7", "17: tokens of type 7 (float32)"},
        {"UnknownType", 17, "\xc8", "17: tokens of type 200 (unknown)"},
        {"WiderType", 17, "\5", "62: sequence 1 begins at byte 12"},
        {"MoreSequences", 18, "\6", "142: the file ends here"},
        {"FewerSequences", 18, "\4", "142: the file ends here"},
        {"HugeSequences", 18, std::string(8, '\xff'), "142: the file ends"},
        {"MoreDocuments", 26, "\7", "142: the file ends here"},
        {"HugeDocuments", 26, std::string(8, '\xff'), "142: the file ends"},
        // 2^61 entries of 8 bytes: the sum overflows to the file's size.
        {"OverflowingDocuments", 26, Bytes<uint64_t>({6 + (uint64_t{1} << 61)}),
         "142: the file ends"},
        {"NegativeLength", 38, Bytes<int32_t>({-1}),
         "38: sequence 1 has -1 tokens"},
        {"LongSequence", 50, "\2",
         "50: sequence 4 has 2 tokens after the 10 tokens before it"},
        {"ShiftedLength", 34, "\2", "62: sequence 1 begins at byte 12"},
        {"Pointer", 54, "\4", "54: sequence 0 begins at byte 4"},
        {"FirstDocument", 94, "\1", "94: document 0 begins with sequence 1"},
        {"DescendingDocuments", 110, Bytes<int64_t>({0}),
         "110: document 2 begins with sequence 0; must be in [1, 5]"},
        {"DocumentAfterTheEnd", 134, "\6",
         "134: document 5 begins with sequence 6; must be in [4, 5]"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(MegatronFileTest, RefusesFilesOfAnotherLength) {
  const std::string index = Read(MegatronFixture("int32.idx"));
  const std::string tokens = Read(MegatronFixture("int32.bin"));
  const auto open = [](const std::string& index, const std::string& tokens) {
    Write(TestPath("a.idx"), index);
    Write(TestPath("a.bin"), tokens);
    return TokenFile::Open(TestPath("a.idx"), TokenFileFormat::kDetect);
  };
  ASSERT_THAT(open(index, tokens), IsOk());
  for (size_t bytes = 0; bytes < index.size(); ++bytes) {
    EXPECT_THAT(open(index.substr(0, bytes), tokens),
                Fails(StatusCode::kInvalidArgument, HasSubstr("a.idx, byte")))
        << "cut to " << bytes << " bytes";
  }
  EXPECT_THAT(open(index + std::string(5, '\0'), tokens),
              Fails(StatusCode::kInvalidArgument, HasSubstr("multimodal")));
  EXPECT_THAT(open(index, tokens.substr(0, 43)),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("a.idx, byte 50: sequence 4 has 1 tokens")));
  EXPECT_THAT(open(index, tokens + "x"),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("a.bin, byte 44: the tokens of ")));
}

TEST(TokenFileTest, NamesAMissingFileOrOneThatIsNotAFile) {
  EXPECT_THAT(TokenFile::Open(TestPath("no.bin"), TokenFileFormat::kDetect),
              Fails(StatusCode::kNotFound, HasSubstr("no.bin")));
  EXPECT_THAT(TokenFile::Open(TestPath(""), TokenFileFormat::kDetect),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("is a folder, not a file")));
}

}  // namespace
}  // namespace tessera
