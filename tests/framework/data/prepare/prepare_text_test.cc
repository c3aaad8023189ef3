#include "framework/data/prepare/prepare_text.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "framework/base/file.h"
#include "framework/data/prepare/corpus.h"
#include "framework/data/prepare/corpus_manifest.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/framework/data/data_test_util.h"
#include "tests/framework/data/prepare/part_texts.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using testing::CppText;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Fails;
using testing::FlipByte;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Not;
using testing::PartTexts;
using testing::Read;
using testing::TestPath;
using ::testing::Value;
using testing::Write;

TEST(CorpusTest, CutsFilesAtSeparators) {
  Write(TestPath("a.txt"), "one\n<E>two<E><E>\nthree");
  Write(TestPath("b.txt"), "four<E>");
  Write(TestPath("c.txt"), "");
  const std::vector<std::string> files = {TestPath("a.txt"), TestPath("b.txt"),
                                          TestPath("c.txt")};
  const auto corpus = Corpus::Scan(files, {.separator = "<E>"});
  ASSERT_THAT(corpus, IsOk());
  EXPECT_THAT(PartTexts(*corpus),
              ElementsAre("one\n", "two", "\nthree", "four"));
  EXPECT_EQ(corpus->bytes(), 4 + 3 + 6 + 4);
  for (const Corpus::Part& part : corpus->parts()) {
    EXPECT_TRUE(part.ends_document);
    EXPECT_FALSE(part.is_validation);
  }
  const auto whole_files = Corpus::Scan(files, {});
  ASSERT_THAT(whole_files, IsOk());
  EXPECT_EQ(whole_files->parts().size(), 2u);
}

TEST(CorpusTest, CutsLongDocumentsAtLineEndsAndCharacters) {
  std::string no_lines;
  while (no_lines.size() < 200000) no_lines += "漢a";
  const std::string lines = CppText(20000, 1);
  Write(TestPath("a.txt"), lines);
  Write(TestPath("b.txt"), no_lines);
  const auto corpus = Corpus::Scan({TestPath("a.txt"), TestPath("b.txt")},
                                   {.separator = "<E>"});
  ASSERT_THAT(corpus, IsOk());
  const std::vector<std::string> texts = PartTexts(*corpus);
  std::string joined;
  int documents = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_LE(texts[i].size(), 65536u);
    EXPECT_NE(texts[i].front() & 0xc0, 0x80) << "cut inside a character";
    const Corpus::Part& part = corpus->parts()[i];
    if (part.file == 0) {
      EXPECT_EQ(texts[i].back(), '\n');
    }
    documents += part.ends_document ? 1 : 0;
    joined += texts[i];
  }
  EXPECT_EQ(joined, lines + no_lines);
  EXPECT_EQ(documents, 2);
  EXPECT_EQ(corpus->non_utf8_documents(), 0);
}

TEST(CorpusTest, RefusesWhatCannotBeSplitOrRead) {
  Write(TestPath("a.txt"), "short");
  Write(TestPath("empty.txt"), "");
  EXPECT_THAT(Corpus::Scan({TestPath("empty.txt")}, {}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("no text")));
  EXPECT_THAT(Corpus::Scan({TestPath("none.txt")}, {}),
              Fails(StatusCode::kNotFound, HasSubstr("none.txt")));
  const auto corpus = Corpus::Scan({TestPath("a.txt")}, {});
  ASSERT_THAT(corpus, IsOk());
  Write(TestPath("a.txt"), "shr");
  std::string text;
  EXPECT_THAT(corpus->Read(corpus->parts()[0], &text),
              Fails(StatusCode::kFailedPrecondition, HasSubstr("shorter")));
}

// A text that is not UTF-8, and the expected error.
struct Invalid {
  std::string text;
  std::string message;
};

TEST(CorpusTest, RefusesOrSkipsWhatIsNotUtf8Text) {
  using std::string_literals::operator""s;
  const std::string lines = CppText(5000, 1);  // longer than a part
  ASSERT_GT(lines.size(), 2 * 65536);
  const std::string no_lines = std::string(65535, 'x') + "漢";
  Write(TestPath("good.txt"), lines);
  const std::string path = TestPath("bad.txt");
  const auto scan = [&](InvalidText invalid_text) {
    return Corpus::Scan({TestPath("good.txt"), path, TestPath("good.txt")},
                        {.separator = "<E>", .invalid_text = invalid_text});
  };
  for (const Invalid& bad : std::vector<Invalid>{
           {"caf\xe9", "byte 3: 0xe9 is not UTF-8"},
           {"one<E>\xc3(", "byte 6: 0xc3 is not UTF-8"},
           {lines + "\xff",
            absl::StrCat("byte ", lines.size(), ": 0xff is not UTF-8")},
           {no_lines + "\xc0", "byte 65538: 0xc0 is not UTF-8"},
           {"\x7f"
            "ELF\0\xff"s,
            "byte 4: a NUL byte, as binary files"},
           {"h\0i\0"s, "byte 1: a NUL byte"},
           {"\xff\xfeh\0i\0"s, "byte 0: has the byte order mark of UTF-16"},
           {"\xfe\xff\0h"s, "byte 0: has the byte order mark of UTF-16"},
           {"\xff\xfe\0\0h\0\0\0"s, "the byte order mark of UTF-32"}}) {
    Write(path, bad.text);
    EXPECT_THAT(scan(InvalidText::kRefuse),
                Fails(StatusCode::kInvalidArgument,
                      AllOf(HasSubstr(path + ", "), HasSubstr(bad.message),
                            HasSubstr("set --skip_invalid"))));
    const auto skipped = scan(InvalidText::kSkip);
    ASSERT_THAT(skipped, IsOk());
    EXPECT_THAT(skipped->skipped(), ElementsAre(HasSubstr(bad.message)));
    EXPECT_TRUE(absl::StrJoin(PartTexts(*skipped), "") == lines + lines);
    EXPECT_EQ(skipped->bytes(), 2 * lines.size());
  }
  for (const std::string& good :
       {no_lines, std::string("\xef\xbb\xbfmark"), std::string()}) {
    Write(path, good);
    EXPECT_THAT(scan(InvalidText::kRefuse), IsOk());
  }
  Write(path, "\xff");
  EXPECT_THAT(Corpus::Scan({path}, {.invalid_text = InvalidText::kSkip}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("hold no text")));
}

// Files are read in windows; separators are found at every position.
TEST(CorpusTest, FindsSeparatorsAcrossPartsAndWindows) {
  for (const size_t first : {65530u, 65535u, 65536u, 65537u, 65540u, 131072u,
                             1048570u, 1048576u, 1114112u}) {
    const std::string a(first, 'a'), b(70000, 'b');
    Write(TestPath("a.txt"), a + "<END>" + b + "<END>");
    const auto corpus =
        Corpus::Scan({TestPath("a.txt")}, {.separator = "<END>"});
    ASSERT_THAT(corpus, IsOk());
    std::vector<std::string> documents(1);
    const std::vector<std::string> texts = PartTexts(*corpus);
    for (size_t i = 0; i < texts.size(); ++i) {
      documents.back() += texts[i];
      if (corpus->parts()[i].ends_document) documents.emplace_back();
    }
    EXPECT_TRUE(documents == (std::vector<std::string>{a, b, ""})) << first;
  }
}

TEST(ManifestTest, RoundTrips) {
  Manifest manifest;
  manifest.tokenizer = TokenizerKind::kBytes;
  manifest.vocab_size = 257;
  manifest.tokenizer_checksum = 0xfedcba9876543210;
  manifest.train = {1, 2, 3, 4};
  manifest.validation = {5, 6, 7, ~uint64_t{0}};
  manifest.non_utf8_documents = 8;
  manifest.unigram_entropy = 6.125;
  const auto parsed = ParseManifest(ToJson(manifest));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(ToJson(*parsed), ToJson(manifest));
  EXPECT_EQ(parsed->tokenizer, TokenizerKind::kBytes);
  EXPECT_EQ(parsed->tokenizer_checksum, 0xfedcba9876543210);
  EXPECT_EQ(parsed->validation.checksum, ~uint64_t{0});
  EXPECT_EQ(parsed->train.tokens, 3);
}

TEST(ManifestTest, NamesTheFieldThatIsWrong) {
  const std::string json = ToJson({});
  const auto with = [&](absl::string_view from, absl::string_view to) {
    const std::string changed = absl::StrReplaceAll(json, {{from, to}});
    EXPECT_NE(changed, json) << from;
    return ParseManifest(changed);
  };
  const auto fails = [](absl::string_view message) {
    return Fails(StatusCode::kInvalidArgument, HasSubstr(std::string(message)));
  };
  EXPECT_THAT(ParseManifest(""), fails("manifest is not JSON"));
  EXPECT_THAT(ParseManifest("[1]"), fails("must be a JSON object; is [1]"));
  EXPECT_THAT(ParseManifest(json.substr(0, json.size() / 2)),
              fails("manifest is not JSON"));
  EXPECT_THAT(with("tessera prepared text", "other"), fails("format must be"));
  EXPECT_THAT(with("\"version\": 1", "\"version\": 2"), fails("version 2"));
  EXPECT_THAT(with("\"tokens\": 0", "\"tokens\": \"many\""),
              fails("train.tokens must be a whole number in [0, 922"));
  for (const char* wrong : {"-1", "1.0", "9223372036854775808", "null"}) {
    EXPECT_THAT(
        with("\"documents\": 0", absl::StrCat("\"documents\": ", wrong)),
        fails(absl::StrCat("775807]; is ", wrong)));
  }
  EXPECT_THAT(with("\"vocab_size\"", "\"size\""), fails("775807]; is missing"));
  EXPECT_THAT(with("\"bpe\"", "\"words\""),
              fails("use bpe, bytes or byte_level_bpe"));
  EXPECT_THAT(with("0000000000000000", "000000000000000g"),
              fails("16 hexadecimal digits"));
}

class PrepareTest : public ::testing::TestWithParam<TokenizerKind> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 40; ++i) {
      const std::string path = TestPath(absl::StrCat("text", 10 + i, ".cc"));
      text_.push_back(CppText(100, i));
      Write(path, text_.back());
    }
    options_.tokenizer = GetParam();
    options_.vocab_size = 500;
    options_.validation_fraction = 0.1;
    options_.threads = 3;
    files_ = ExpandGlobs({TestPath("text*.cc")}).value();
    out_ = TestPath("out");
  }

  std::string TokenizerFile() const {
    return GetParam() == TokenizerKind::kByteLevelBpe ? "tokenizer.json"
                                                      : "tokenizer.model";
  }

  std::vector<std::string> text_;
  std::vector<std::string> files_;
  std::string out_;
  PrepareOptions options_;
};

std::string Decode(const Tokenizer& tokenizer, const TokenFile& file,
                   absl::string_view end) {
  std::vector<int64_t> tokens(file.tokens());
  EXPECT_THAT(file.Read(0, absl::MakeSpan(tokens)), IsOk());
  std::string text;
  for (const int64_t token : tokens) {
    const auto id = static_cast<int32_t>(token);
    text += tokenizer.Decode({id}).value();
    if (id == tokenizer.eos_id()) absl::StrAppend(&text, end);
  }
  return text;
}

TEST_P(PrepareTest, KeepsEveryDocumentInOrder) {
  const auto manifest = PrepareText(files_, out_, options_);
  ASSERT_THAT(manifest, IsOk());
  const auto folder = OpenPreparedFolder(out_);
  ASSERT_THAT(folder, IsOk());
  EXPECT_EQ(ToJson(folder->manifest), ToJson(*manifest));
  EXPECT_EQ(manifest->train.documents, 36);
  EXPECT_EQ(manifest->validation.documents, 4);
  EXPECT_EQ(manifest->vocab_size, folder->tokenizer->vocab_size());
  ASSERT_TRUE(folder->validation.has_value());

  const Tokenizer& tokenizer = *folder->tokenizer;
  const std::string train = Decode(tokenizer, folder->train, "<E>");
  const std::string validation = Decode(tokenizer, *folder->validation, "<E>");
  std::string expected_train, expected_validation;
  for (const std::string& text : text_) {
    const bool is_train = train.find(text + "<E>") != std::string::npos;
    absl::StrAppend(is_train ? &expected_train : &expected_validation, text,
                    "<E>");
  }
  EXPECT_EQ(train, expected_train);
  EXPECT_EQ(validation, expected_validation);
  EXPECT_EQ(manifest->train.bytes, train.size() - 3 * 36);
  EXPECT_THAT(ListDirectory(out_).value(),
              ElementsAre("manifest.json", TokenizerFile(), "train.tok",
                          "validation.tok"));
}

TEST_P(PrepareTest, StatesTheUnigramEntropy) {
  const auto manifest = PrepareText(files_, out_, options_);
  ASSERT_THAT(manifest, IsOk());
  const auto folder = OpenPreparedFolder(out_);
  ASSERT_THAT(folder, IsOk());
  std::vector<int64_t> train(folder->train.tokens());
  std::vector<int64_t> validation(folder->validation->tokens());
  EXPECT_THAT(folder->train.Read(0, absl::MakeSpan(train)), IsOk());
  EXPECT_THAT(folder->validation->Read(0, absl::MakeSpan(validation)), IsOk());
  double nats = 0;
  std::vector<double> counts(manifest->vocab_size, 1);
  for (const int64_t token : train) ++counts[token];
  for (const int64_t token : validation) {
    nats -= std::log(counts[token] / (train.size() + counts.size()));
  }
  EXPECT_NEAR(manifest->unigram_entropy, nats / validation.size(), 1e-9);
  EXPECT_GT(manifest->unigram_entropy, 1);
  EXPECT_LT(manifest->unigram_entropy, std::log(counts.size()));
}

TEST_P(PrepareTest, IsReproducible) {
  ASSERT_THAT(PrepareText(files_, out_, options_), IsOk());
  options_.threads = 1;
  const std::string again = TestPath("again");
  ASSERT_THAT(PrepareText(files_, again, options_), IsOk());
  for (const std::string& name :
       {std::string("manifest.json"), TokenizerFile(), std::string("train.tok"),
        std::string("validation.tok")}) {
    EXPECT_EQ(Read(absl::StrCat(out_, "/", name)),
              Read(absl::StrCat(again, "/", name)))
        << name;
  }
}

TEST_P(PrepareTest, DetectsAFlippedByteInAnyFile) {
  ASSERT_THAT(PrepareText(files_, out_, options_), IsOk());
  for (const std::string& name : {TokenizerFile(), std::string("train.tok"),
                                  std::string("validation.tok")}) {
    const std::string path = absl::StrCat(out_, "/", name);
    const size_t size = Read(path).size();
    for (const size_t offset : {size_t{0}, size / 3, size / 2, size - 1}) {
      FlipByte(path, offset);
      EXPECT_THAT(
          OpenPreparedFolder(out_),
          Fails(AnyOf(StatusCode::kDataLoss, StatusCode::kInvalidArgument),
                HasSubstr(path)))
          << name << " byte " << offset;
      FlipByte(path, offset);
    }
  }
  EXPECT_THAT(OpenPreparedFolder(out_), IsOk());
}

TEST_P(PrepareTest, DetectsAShardOfAnotherPreparation) {
  ASSERT_THAT(PrepareText(files_, out_, options_), IsOk());
  options_.seed = 99;
  const std::string other = TestPath("other");
  ASSERT_THAT(PrepareText(files_, other, options_), IsOk());
  Write(absl::StrCat(out_, "/train.tok"),
        Read(absl::StrCat(other, "/train.tok")));
  EXPECT_THAT(OpenPreparedFolder(out_),
              Fails(StatusCode::kDataLoss, HasSubstr("train.tok")));
}

TEST_P(PrepareTest, LeavesNothingBehindOnFailure) {
  Write(out_, "a file in the way");
  EXPECT_THAT(PrepareText(files_, out_, options_),
              Fails(StatusCode::kAlreadyExists, HasSubstr(out_)));
  EXPECT_EQ(Read(out_), "a file in the way");
  files_.push_back(TestPath("missing.cc"));
  const std::string out = TestPath("out2");
  EXPECT_THAT(PrepareText(files_, out, options_),
              Fails(StatusCode::kNotFound, HasSubstr("missing.cc")));
  const auto left = ListDirectory(TestPath(""));
  ASSERT_THAT(left, IsOk());
  EXPECT_THAT(*left, Each(Not(HasSubstr("out2"))));
}

TEST_P(PrepareTest, StopsOnRequestAndLeavesNothing) {
  int asked = 0;
  options_.check_stop = [&] {
    const auto left = ListDirectory(TestPath(""));
    EXPECT_THAT(left, IsOk());
    // Called only once there is something to remove.
    EXPECT_EQ(asked > 0, Value(*left, Contains(HasSubstr("out.partial-"))));
    return ++asked == 3 ? absl::CancelledError("enough") : absl::OkStatus();
  };
  EXPECT_THAT(PrepareText(files_, out_, options_),
              Fails(StatusCode::kCancelled, "enough"));
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(ListDirectory(TestPath("")).value(), Each(HasSubstr("text")));
}

TEST_P(PrepareTest, AcceptsTrailingSlashes) {
  for (const char* tail : {"/", "//", "/.", "/./"}) {
    EXPECT_THAT(PrepareText(files_, out_ + tail, options_), IsOk()) << tail;
    EXPECT_THAT(OpenPreparedFolder(out_), IsOk());
    EXPECT_THAT(PrepareText(files_, out_ + tail, options_),
                Fails(StatusCode::kAlreadyExists, HasSubstr(out_)));
    EXPECT_THAT(RemoveTree(out_), IsOk());
  }
}

TEST_P(PrepareTest, BoundsTheThreads) {
  options_.threads = std::numeric_limits<int>::max();
  EXPECT_THAT(PrepareText(files_, out_, options_), IsOk());
}

TEST_P(PrepareTest, KeepsTextThatIsNotUtf8OnRequest) {
  const std::string latin1 = TestPath("latin1.txt");
  Write(latin1, "caf\xe9 cr\xe8me\n");
  options_.validation_fraction = 0;
  options_.invalid_text = InvalidText::kKeep;
  files_.push_back(latin1);
  const auto manifest = PrepareText(files_, out_, options_);
  ASSERT_THAT(manifest, IsOk());
  EXPECT_EQ(manifest->non_utf8_documents, 1);
  EXPECT_EQ(manifest->validation.tokens, 0);
  const auto folder = OpenPreparedFolder(out_);
  ASSERT_THAT(folder, IsOk());
  EXPECT_FALSE(folder->validation.has_value());
  EXPECT_THAT(Decode(*folder->tokenizer, folder->train, ""),
              ::testing::EndsWith("caf\xe9 cr\xe8me\n"));
}

TEST_P(PrepareTest, ChecksTheOutputBeforeReadingText) {
  Write(TestPath("file"), "");
  ASSERT_EQ(symlink("nowhere", TestPath("link").c_str()), 0);
  files_.push_back(TestPath("missing.cc"));
  for (const std::string& out :
       {TestPath("file") + "/out", std::string("/proc/self/a/b/out"),
        TestPath(std::string(250, 'x'))}) {
    const auto refused = PrepareText(files_, out, options_);
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()),
                AllOf(HasSubstr("the output folder " + out),
                      HasSubstr("choose a folder that can be written")));
  }
  EXPECT_THAT(PrepareText(files_, TestPath("link"), options_),
              Fails(StatusCode::kAlreadyExists, HasSubstr("link")));
  // A folder that can be created is not created until it has contents.
  EXPECT_THAT(PrepareText(files_, TestPath("a/b/out"), options_),
              Fails(StatusCode::kNotFound, HasSubstr("missing.cc")));
  EXPECT_THAT(ListDirectory(TestPath("")).value(),
              Each(AnyOf(HasSubstr("text"), "file", "link")));
}

TEST_P(PrepareTest, ReportsProgress) {
  std::vector<std::string> ended;
  double last = 0;
  options_.progress = [&](const Progress& progress) {
    if (progress.fraction == 0) last = 0;
    EXPECT_GE(progress.fraction, last);
    last = progress.fraction;
    if (last == 1) ended.emplace_back(progress.phase);
  };
  ASSERT_THAT(PrepareText(files_, out_, options_), IsOk());
  if (GetParam() == TokenizerKind::kBytes) {
    EXPECT_THAT(ended, ElementsAre(HasSubstr("encoding")));
  } else {
    EXPECT_THAT(ended,
                ElementsAre(HasSubstr("learning 500 "), HasSubstr("encoding")));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, PrepareTest,
                         ::testing::Values(TokenizerKind::kBpe,
                                           TokenizerKind::kBytes,
                                           TokenizerKind::kByteLevelBpe),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

TEST(PrepareOptionsTest, AreChecked) {
  Write(TestPath("a.txt"), CppText(100, 1));
  const auto prepare = [](PrepareOptions options) {
    return PrepareText({TestPath("a.txt")}, TestPath("out"), options);
  };
  EXPECT_THAT(prepare({.vocab_size = 299}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("300")));
  EXPECT_THAT(prepare({.tokenizer = TokenizerKind::kBytes, .vocab_size = 256}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("257")));
  for (const double fraction : {-0.1, 0.6, std::nan("")}) {
    EXPECT_THAT(prepare({.validation_fraction = fraction}),
                Fails(StatusCode::kInvalidArgument, HasSubstr("[0, 0.5]")));
  }
  EXPECT_THAT(prepare({.threads = -3}),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("at least 0, where 0 is one per core; is -3")));
}

TEST(PrepareTokenizerFileTest, UsesTheGivenTokenizer) {
  Write(TestPath("a.txt"), CppText(300, 1));
  PrepareOptions options = {.tokenizer = TokenizerKind::kByteLevelBpe,
                            .vocab_size = 400};
  const auto learned =
      PrepareText({TestPath("a.txt")}, TestPath("learned"), options);
  ASSERT_THAT(learned, IsOk());
  options.tokenizer_file = TestPath("learned/tokenizer.json");
  Write(TestPath("b.txt"), "int other(int text);\n" + CppText(300, 2));
  const auto manifest =
      PrepareText({TestPath("b.txt")}, TestPath("given"), options);
  ASSERT_THAT(manifest, IsOk());
  EXPECT_EQ(manifest->vocab_size, learned->vocab_size);
  EXPECT_EQ(Read(TestPath("given/tokenizer.json")),
            Read(options.tokenizer_file));

  Write(options.tokenizer_file, "{");
  EXPECT_THAT(PrepareText({TestPath("b.txt")}, TestPath("bad"), options),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr(options.tokenizer_file + ": is not a JSON")));
  options.tokenizer_file = TestPath("missing.json");
  EXPECT_THAT(PrepareText({TestPath("b.txt")}, TestPath("bad"), options),
              Fails(StatusCode::kNotFound, HasSubstr("missing.json")));
  EXPECT_FALSE(FileExists(TestPath("bad")));
}

TEST(PrepareTokenizerFileTest, EachDocumentBeginsAsTheTemplateSays) {
  Write(TestPath("a.txt"), CppText(300, 1));
  PrepareOptions options = {.tokenizer = TokenizerKind::kByteLevelBpe,
                            .vocab_size = 400,
                            .validation_fraction = 0};
  ASSERT_THAT(PrepareText({TestPath("a.txt")}, TestPath("learned"), options),
              IsOk());
  auto json = nlohmann::json::parse(Read(TestPath("learned/tokenizer.json")));
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", {}}}}},
      {"special_tokens", {{"x", {{"ids", {7, 9}}}}}}};
  options.tokenizer_file = TestPath("template.json");
  Write(options.tokenizer_file, json.dump());
  const std::vector<std::string> texts = {"int one;", CppText(20'000, 2)};
  Write(TestPath("b.txt"), texts[0] + options.separator + texts[1]);
  const std::string out = TestPath("out");
  ASSERT_THAT(PrepareText({TestPath("b.txt")}, out, options), IsOk());
  const auto folder = OpenPreparedFolder(out).value();
  std::vector<int64_t> tokens(folder.train.tokens()), expected;
  EXPECT_THAT(folder.train.Read(0, absl::MakeSpan(tokens)), IsOk());
  for (const std::string& text : texts) {
    expected.insert(expected.end(), {7, 9});
    const std::vector<int32_t> ids = folder.tokenizer->Encode(text).value();
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(folder.tokenizer->eos_id());
  }
  EXPECT_EQ(tokens, expected);
}

TEST(PrepareTokenizerFileTest, PartsHaveTheIdsOfTheWholeDocument) {
  // Paragraphs, indented lines and punctuation, where pre-tokens cross lines.
  std::string text = CppText(100, 1);
  for (int i = 0; text.size() < 500'000; ++i) {
    absl::StrAppend(&text, "  x", i, ";\n\n \u3000\n", "/", "\u2003\n", i,
                    "\n漢字。\n漢", i % 7 == 0 ? "\n" : "\n\n\n");
  }
  Write(TestPath("a.txt"), text);
  const auto expect_ids_of_whole = [&](const std::string& out,
                                       const PrepareOptions& options) {
    ASSERT_THAT(PrepareText({TestPath("a.txt")}, out, options), IsOk());
    const auto folder = OpenPreparedFolder(out);
    ASSERT_THAT(folder, IsOk());
    std::vector<int64_t> tokens(folder->train.tokens());
    EXPECT_THAT(folder->train.Read(0, absl::MakeSpan(tokens)), IsOk());
    std::vector<int32_t> expected = folder->tokenizer->Encode(text).value();
    expected.push_back(folder->tokenizer->eos_id());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin(),
                           expected.end()));
  };
  PrepareOptions options = {.tokenizer = TokenizerKind::kByteLevelBpe,
                            .vocab_size = 400,
                            .validation_fraction = 0};
  for (const absl::string_view pattern :
       {kLlama3Pattern, kQwen2Pattern, kGpt2Pattern}) {
    SCOPED_TRACE(pattern);
    options.split_pattern = std::string(pattern);
    expect_ids_of_whole(TestPath(absl::StrCat("out", pattern.size())), options);
  }
  auto json = nlohmann::json::parse(Read(
      TestPath(absl::StrCat("out", kGpt2Pattern.size(), "/tokenizer.json"))));
  json["pre_tokenizer"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  options.tokenizer_file = TestPath("prefix.json");
  Write(options.tokenizer_file, json.dump());
  expect_ids_of_whole(TestPath("prefix"), options);
}

TEST(ExpandGlobsTest, SortsAndDropsDuplicates) {
  for (const char* name : {"b.txt", "a.txt", "c.md"}) Write(TestPath(name), "");
  const auto files =
      ExpandGlobs({TestPath("*.txt"), TestPath("c.md"), TestPath("a*")});
  ASSERT_THAT(files, IsOk());
  EXPECT_THAT(*files, ElementsAre(TestPath("a.txt"), TestPath("b.txt"),
                                  TestPath("c.md")));
  EXPECT_THAT(ExpandGlobs({TestPath("*.txt"), TestPath("*.cpp")}),
              Fails(StatusCode::kNotFound, HasSubstr("*.cpp")));
}

TEST(OpenPreparedFolderTest, SaysHowToPrepareOne) {
  EXPECT_THAT(OpenPreparedFolder(TestPath("none")),
              Fails(StatusCode::kNotFound, HasSubstr("prepare_data")));
}

}  // namespace
}  // namespace tessera
