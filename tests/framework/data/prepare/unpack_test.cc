#include "framework/data/prepare/unpack.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "framework/base/file.h"
#include "framework/data/prepare/byte_stream.h"
#include "framework/data/prepare/prepare_text.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using testing::CppText;
using ::testing::Each;
using testing::Fails;
using testing::FlipByte;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using testing::Read;
using testing::TestPath;
using testing::Write;
using Json = nlohmann::json;

// One member of a gzip file.
std::string Gzip(absl::string_view text) {
  z_stream state = {};
  EXPECT_EQ(deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, 0), Z_OK);
  std::string packed(deflateBound(&state, text.size()), 0);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = text.size();
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = packed.size();
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  packed.resize(state.total_out);
  deflateEnd(&state);
  return packed;
}

// One frame of a zstd file, with a checksum as the program zstd writes it.
std::string Zstd(absl::string_view text) {
  ZSTD_CCtx* const state = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), 0);
  packed.resize(ZSTD_compress2(state, packed.data(), packed.size(), text.data(),
                               text.size()));
  ZSTD_freeCCtx(state);
  return packed;
}

// What Unpack() makes of an input.
absl::StatusOr<std::string> UnpackOne(const std::string& input,
                                      const UnpackOptions& options = {}) {
  const std::string folder = TestPath("unpacked");
  EXPECT_THAT(RemoveTree(folder), IsOk());
  const auto texts = Unpack({input}, folder, options);
  if (!texts.ok()) return texts.status();
  EXPECT_EQ(texts->size(), 1u);
  return Read(texts->at(input).path);
}

// The same with `bytes` on standard input, through a pipe.
absl::StatusOr<std::string> UnpackPipe(const std::string& bytes,
                                       const UnpackOptions& options = {}) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const int standard_input = dup(STDIN_FILENO);
  EXPECT_EQ(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
  close(ends[0]);
  std::thread writer([&] {
    EXPECT_THAT(WriteAll(ends[1], bytes, "pipe"), IsOk());
    close(ends[1]);
  });
  const auto restore = absl::MakeCleanup([&] {
    writer.join();
    dup2(standard_input, STDIN_FILENO);
    close(standard_input);
  });
  return UnpackOne(kStandardInput, options);
}

TEST(UnpackTest, DecompressesMembersAndFrames) {
  const std::string text = CppText(100000, 1);  // many buffers
  ASSERT_GT(text.size(), 2u << 20);
  Write(TestPath("a.txt.gz"), Gzip(text));
  Write(TestPath("a.txt.zst"), Zstd(text));
  Write(TestPath("two.gz"), Gzip(text) + Gzip("") + Gzip("tail"));
  Write(TestPath("two.zst"), Zstd(text) + Zstd("") + Zstd("tail"));
  EXPECT_TRUE(UnpackOne(TestPath("a.txt.gz")).value() == text);
  EXPECT_TRUE(UnpackOne(TestPath("a.txt.zst")).value() == text);
  EXPECT_TRUE(UnpackOne(TestPath("two.gz")).value() == text + "tail");
  EXPECT_TRUE(UnpackOne(TestPath("two.zst")).value() == text + "tail");
}

TEST(UnpackTest, ReadsStandardInputByItsFirstBytes) {
  const std::string text = CppText(20000, 1);
  for (const std::string& bytes : {text, Gzip(text), Zstd(text)}) {
    EXPECT_TRUE(UnpackPipe(bytes).value() == text);
  }
  EXPECT_EQ(UnpackPipe("").value(), "");
  EXPECT_EQ(UnpackPipe("x").value(), "x");
  EXPECT_EQ(UnpackPipe(Zstd("{\"text\": \"a\"}\n"),
                       {.format = InputFormat::kJsonLines})
                .value(),
            "a\xff");
  EXPECT_EQ(UnpackPipe("{}", {.format = InputFormat::kText}).value(), "{}");
  EXPECT_THAT(UnpackPipe("{\"text\": \"a\"}\n"),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("standard input begins with '{'"),
                          HasSubstr("--format=jsonl"))));
  EXPECT_THAT(
      UnpackPipe(Gzip(text).substr(0, 1000)),
      Fails(StatusCode::kDataLoss, HasSubstr("standard input: is truncated")));
}

TEST(UnpackTest, SkipsZerosAfterGzip) {
  const std::string path = TestPath("a.gz");
  const auto unpack = [&](const std::string& packed) {
    Write(path, packed);
    return UnpackOne(path);
  };
  const std::string one = Gzip("one");
  const std::string zeros(512, '\0');
  EXPECT_EQ(unpack(one + zeros).value(), "one");
  EXPECT_EQ(unpack(one + std::string(1 << 20, '\0')).value(), "one");
  EXPECT_EQ(unpack(one + zeros + Gzip("two") + zeros).value(), "onetwo");
  EXPECT_FALSE(unpack(one + zeros + "x").ok());
  EXPECT_FALSE(unpack(one + zeros + "more than a header").ok());
  EXPECT_FALSE(unpack(zeros + one).ok());
}

TEST(UnpackTest, RefusesEveryTruncation) {
  const std::string text = CppText(3, 1);
  for (const std::string name : {"a.gz", "a.zst"}) {
    const std::string packed = name == "a.gz" ? Gzip(text) : Zstd(text);
    const std::string path = TestPath(name);
    for (size_t size = 0; size < packed.size(); ++size) {
      Write(path, packed.substr(0, size));
      ASSERT_THAT(UnpackOne(path), Fails(StatusCode::kDataLoss,
                                         HasSubstr(path + ": is truncated")))
          << size;
      Write(path, packed + packed.substr(0, size));
      ASSERT_EQ(UnpackOne(path).ok(), size == 0) << size;
    }
  }
}

TEST(UnpackTest, RefusesDamage) {
  const std::string text = CppText(50, 1);
  for (const std::string name : {"a.gz", "a.zst"}) {
    const std::string packed = name == "a.gz" ? Gzip(text) : Zstd(text);
    const std::string path = TestPath(name);
    const auto is_damaged =
        Fails(StatusCode::kDataLoss, HasSubstr(path + ", compressed byte "));
    Write(path, text);
    EXPECT_THAT(UnpackOne(path),
                Fails(StatusCode::kInvalidArgument,
                      HasSubstr(path + ": does not begin like a " +
                                (name == "a.gz" ? "gzip" : "zstd") +
                                " file; rename it")));
    Write(path, packed + "x");
    EXPECT_FALSE(UnpackOne(path).ok());
    Write(path, packed + "more than a header");
    EXPECT_THAT(UnpackOne(path), is_damaged);
    Write(path, packed);
    for (size_t i = 20; i < packed.size(); i += 7) {
      FlipByte(path, i);
      // Some bits have no meaning.
      EXPECT_THAT(UnpackOne(path).value_or(text), text) << i;
      FlipByte(path, i);
    }
    EXPECT_THAT(UnpackOne(path), IsOk());
  }
}

TEST(UnpackTest, TakesTheFieldOfEachJsonLine) {
  const std::string lines =
      "{\"id\": 1, \"text\": \"one\\ntwo <E>\", \"meta\": {\"text\": \"no\"}}\n"
      "\n"
      "  \t\r\n"
      "{\"text\": \"\\u6f22\\ud83d\\ude00 \u6f22\"}\r\n"
      "{\"text\": \"\", \"body\": \"other\"}\n"
      "{\"text\": \"no newline\"}";
  const std::string expected =
      "one\ntwo <E>\xff\xff\xff\u6f22\U0001f600 \u6f22\xff\xffno newline\xff";
  for (const char* name :
       {"a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson.zst"}) {
    const std::string path = TestPath(name);
    Write(path, absl::EndsWith(name, "gz")    ? Gzip(lines)
                : absl::EndsWith(name, "zst") ? Zstd(lines)
                                              : lines);
    EXPECT_EQ(UnpackOne(path).value(), expected) << name;
  }
  Write(TestPath("b.txt"), "{\"body\": \"other\"}\n");
  EXPECT_EQ(UnpackOne(TestPath("b.txt"),
                      {.format = InputFormat::kJsonLines, .field = "body"})
                .value(),
            "other\xff");
  Write(TestPath("c.jsonl"), "");
  EXPECT_EQ(UnpackOne(TestPath("c.jsonl")).value(), "");
}

TEST(UnpackTest, KeepsTheOrderOfManyLines) {
  std::string lines, expected;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = CppText(20 * (i % 3), i);
    absl::StrAppend(&lines, Json({{"text", text}}).dump(), "\n");
    absl::StrAppend(&expected, text, "\xff");
  }
  Write(TestPath("a.jsonl"), lines);
  for (const int threads : {1, 3}) {
    EXPECT_TRUE(UnpackOne(TestPath("a.jsonl"), {.threads = threads}).value() ==
                expected);
  }
}

// A line that is refused.
struct Line {
  std::string line;
  std::string error;
};

TEST(UnpackTest, NamesTheLineWithoutAText) {
  const std::string path = TestPath("a.jsonl");
  for (const Line& bad : std::vector<Line>{
           {"word", "must be a JSON object with the field 'text'; is word; if"},
           {"{\"text\": \"open", "is no JSON: {"},
           {"[\"a\"]", "must be a JSON object with the field 'text'; is [\"a"},
           {"{\"text\": \"\xff\"}", "is no JSON: {"},
           {"{\"text\": \"\\ud800\"}", "is no JSON: {"},
           {"{\"id\": 1, \"body\": \"b\"}",
            "must have the field 'text'; has 'body', 'id'; set --field"},
           {"{}", "must have the field 'text'; has no field; set --field"},
           {"{\"text\": 17}", "the field 'text' must be a string; is 17; set"},
           {"{\"text\": null}",
            "the field 'text' must be a string; is null; set"},
           {"{\"text\": \"a\\u0000b\"}", "the field 'text' contains a NUL"}}) {
    Write(path, absl::StrCat("{\"text\": \"first\"}\n\n", bad.line,
                             "\n{\"text\": \"last\"}\n"));
    EXPECT_THAT(UnpackOne(path),
                Fails(StatusCode::kInvalidArgument,
                      AllOf(HasSubstr(absl::StrCat(path, ":3: ", bad.error)),
                            HasSubstr("set --skip_invalid"))));
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(UnpackOne(path, {.skip_invalid = true}).value(),
              "first\xff\xfflast\xff");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(absl::StrCat("skipped ", path, ":3: ")),
                      HasSubstr(absl::StrCat("skipped 1 of 4 lines of ", path,
                                             ", which have no text"))));
  }
}

TEST(UnpackTest, LimitsTheLengthOfALine) {
  const std::string long_text((64 << 20) - 10, 'x');
  const std::string path = TestPath("a.jsonl.zst");
  Write(path, Zstd("{}\n" + long_text + "and more\n{}\n"));
  EXPECT_THAT(UnpackOne(path, {.skip_invalid = true}), IsOk());
  Write(path, Zstd("{}\n" + long_text + "and still more\n{}\n"));
  EXPECT_THAT(
      UnpackOne(path, {.skip_invalid = true}),
      Fails(StatusCode::kInvalidArgument,
            HasSubstr(path + ":2: is longer than 67108864 bytes, the limit")));
}

TEST(UnpackTest, LeavesPlainTextAlone) {
  Write(TestPath("a.txt"), "text");
  Write(TestPath("b.txt"), "{}");
  const auto texts = Unpack({TestPath("a.txt"), TestPath("b.txt")},
                            TestPath("unpacked"), {.check_stop = [] {
                              ADD_FAILURE() << "asked";
                              return absl::OkStatus();
                            }});
  ASSERT_THAT(texts, IsOk());
  EXPECT_TRUE(texts->empty());
  EXPECT_FALSE(FileExists(TestPath("unpacked")));
}

TEST(UnpackTest, RefusesAnAmbiguousName) {
  const std::string path = TestPath("a.json.gz");
  Write(path, Gzip("{\"text\": \"a\"}\n"));
  EXPECT_THAT(UnpackOne(path),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(path), HasSubstr("--format=jsonl"))));
  EXPECT_EQ(UnpackOne(path, {.format = InputFormat::kJsonLines}).value(),
            "a\xff");
  EXPECT_EQ(UnpackOne(path, {.format = InputFormat::kText}).value(),
            "{\"text\": \"a\"}\n");
  const std::string plain = TestPath("a.json");
  Write(plain, "{}\n");
  EXPECT_THAT(UnpackOne(plain),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(plain), HasSubstr("--format=jsonl"),
                          HasSubstr("else --format=text"))));
  const auto as_text =
      Unpack({plain}, TestPath("unpacked"), {.format = InputFormat::kText});
  ASSERT_THAT(as_text, IsOk());
  EXPECT_TRUE(as_text->empty());
}

TEST(UnpackTest, RefusesAFieldWithoutJsonLines) {
  Write(TestPath("a.txt"), "text");
  Write(TestPath("a.jsonl"), "{\"body\": \"a\"}\n");
  const UnpackOptions options = {.field = "body"};
  EXPECT_THAT(Unpack({TestPath("a.txt")}, TestPath("unpacked"), options),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("--field is 'body'"),
                          HasSubstr("set --format=jsonl"))));
  EXPECT_THAT(Unpack({TestPath("a.txt"), TestPath("a.jsonl")},
                     TestPath("unpacked"), options),
              IsOk());
}

TEST(UnpackTest, NamesWhatCannotBeRead) {
  EXPECT_THAT(UnpackOne(TestPath("none.gz")),
              Fails(StatusCode::kNotFound, HasSubstr("none.gz")));
  ASSERT_THAT(MakeDirectory(TestPath("folder.gz")), IsOk());
  EXPECT_THAT(UnpackOne(TestPath("folder.gz")),
              Fails(StatusCode::kFailedPrecondition,
                    HasSubstr("cannot read " + TestPath("folder.gz"))));
  EXPECT_THAT(InputFormatFromName("csv"),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("must be auto, text or jsonl; is 'csv'")));
}

TEST(UnpackTest, StopsWhileItWaitsForAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string path = absl::StrCat("/dev/fd/", ends[0]);
  int asked = 0;
  const auto stream = ByteStream::Open(path, Compression::kNone, [&] {
    return ++asked == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  });
  ASSERT_THAT(stream, IsOk());
  EXPECT_THAT((*stream)->Next(), Fails(StatusCode::kCancelled, "enough"));
  close(ends[0]);
  close(ends[1]);
}

TEST(UnpackTest, ReportsProgress) {
  for (const char* name : {"a.gz", "b.gz"}) {
    Write(TestPath(name), Gzip(CppText(100, 1)));
  }
  std::vector<double> fractions;
  EXPECT_THAT(Unpack({TestPath("a.gz"), TestPath("b.gz"), TestPath("c.txt")},
                     TestPath("unpacked"),
                     {.progress =
                          [&](const Progress& progress) {
                            EXPECT_EQ(progress.phase,
                                      "unpacking 2 of 3 inputs");
                            fractions.push_back(progress.fraction);
                          }}),
              IsOk());
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.front(), 0);
  EXPECT_EQ(std::count(fractions.begin(), fractions.end(), 1), 1);
}

// Prepares `file` in the folder `out`.
absl::Status Prepare(const std::string& file, const std::string& out,
                     TokenizerKind tokenizer) {
  return PrepareText({TestPath(file)}, TestPath(out),
                     {.tokenizer = tokenizer,
                      .vocab_size = 500,
                      .validation_fraction = 0.1,
                      .separator = "<E>"})
      .status();
}

TEST(PreparePackedTest, GivesTheTokensOfTheText) {
  std::string text, lines;
  for (int i = 0; i < 50; ++i) {
    const std::string document = CppText(i == 7 ? 3000 : 100, i);
    absl::StrAppend(&text, document, "<E>");
    absl::StrAppend(&lines, Json({{"text", document}}).dump(), "\n");
  }
  Write(TestPath("a.txt"), text);
  Write(TestPath("a.txt.gz"), Gzip(text));
  Write(TestPath("a.jsonl"), lines);
  Write(TestPath("a.jsonl.zst"), Zstd(lines));
  for (const TokenizerKind tokenizer :
       {TokenizerKind::kBytes, TokenizerKind::kByteLevelBpe}) {
    const std::string name(Name(tokenizer));
    ASSERT_THAT(Prepare("a.txt", name, tokenizer), IsOk());
    const auto expected = ListDirectory(TestPath(name));
    ASSERT_THAT(expected, IsOk());
    for (const char* file : {"a.txt.gz", "a.jsonl", "a.jsonl.zst"}) {
      const std::string out = absl::StrCat(name, file);
      ASSERT_THAT(Prepare(file, out, tokenizer), IsOk());
      EXPECT_EQ(ListDirectory(TestPath(out)).value(), *expected);
      for (const std::string& made : *expected) {
        EXPECT_TRUE(Read(TestPath(absl::StrCat(out, "/", made))) ==
                    Read(TestPath(absl::StrCat(name, "/", made))))
            << out << " " << made;
      }
    }
  }
}

TEST(PreparePackedTest, StopsWhileItScansAndLearns) {
  Write(TestPath("a.txt.gz"), Gzip(CppText(5000, 1)));
  for (const bool learns : {false, true}) {
    bool stop = false;
    std::vector<std::string> ended;
    const auto prepared = PrepareText(
        {TestPath("a.txt.gz")}, TestPath("out"),
        {.tokenizer = TokenizerKind::kByteLevelBpe,
         .vocab_size = 500,
         .progress =
             [&](const Progress& progress) {
               const bool unpacks =
                   absl::StartsWith(progress.phase, "unpacking");
               if (progress.fraction == 1) {
                 ended.emplace_back(unpacks ? "unpacking" : progress.phase);
               }
               stop |= learns ? !unpacks : progress.fraction == 1;
               // Before it learns, it scans.
               EXPECT_TRUE(unpacks || learns) << progress.phase;
             },
         .check_stop =
             [&] {
               return stop ? absl::CancelledError("enough") : absl::OkStatus();
             }});
    EXPECT_THAT(prepared, Fails(StatusCode::kCancelled, "enough"));
    EXPECT_EQ(ended, std::vector<std::string>{"unpacking"});
  }
  EXPECT_THAT(ListDirectory(TestPath("")).value(), Each(Not(HasSubstr("out"))));
}

TEST(PreparePackedTest, NamesTheInputAndLeavesNothingBehind) {
  Write(TestPath("latin.gz"), Gzip("caf\xe9"));
  Write(TestPath("cut.zst"), Zstd(CppText(100, 1)).substr(0, 500));
  Write(TestPath("bad.jsonl"), "{\"text\": \"a\"}\n{}\n");
  Write(TestPath("empty.gz"), Gzip(""));
  EXPECT_THAT(Prepare("latin.gz", "out", TokenizerKind::kBytes),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr(TestPath("latin.gz") + ", byte 3: 0xe9 is not")));
  EXPECT_THAT(Prepare("cut.zst", "out", TokenizerKind::kBytes),
              Fails(StatusCode::kDataLoss,
                    HasSubstr(TestPath("cut.zst") + ": is truncated")));
  EXPECT_THAT(
      Prepare("bad.jsonl", "out", TokenizerKind::kBytes),
      Fails(StatusCode::kInvalidArgument,
            HasSubstr(TestPath("bad.jsonl") + ":2: must have the field")));
  EXPECT_THAT(Prepare("empty.gz", "out", TokenizerKind::kBytes),
              Fails(StatusCode::kInvalidArgument, HasSubstr("no text")));
  EXPECT_THAT(ListDirectory(TestPath("")).value(), Each(Not(HasSubstr("out"))));
}

}  // namespace
}  // namespace tessera
