#include <ATen/ATen.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "framework/base/file.h"
#include "framework/base/ignored_target.h"
#include "framework/base/violations.h"
#include "framework/data/data_config.h"
#include "framework/data/prepare/default_text.h"
#include "framework/data/prepare/prepare_text.h"
#include "framework/data/read/permutation.h"
#include "framework/data/read/token_file.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

// If false, the file system has no locks. The definition below replaces the C
// library's in this program.
static bool has_locks = true;

extern "C" int flock(int descriptor, int operation) noexcept {
  if (has_locks) {
    return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
  }
  errno = ENOLCK;
  return -1;
}

namespace tessera {
namespace {

using ::absl::StatusCode;
using ::testing::AllOf;
using testing::Bytes;
using testing::CppText;
using ::testing::ElementsAre;
using testing::Fails;
using testing::Fill;
using testing::FlipByte;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Not;
using testing::TestPath;
using testing::Write;

DataConfig Parse(const std::string& text) {
  DataConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config))
      << text;
  return config;
}

std::vector<std::string> BrokenRules(const std::string& text) {
  std::vector<Violation> violations;
  Validate(Parse(text), Violations(&violations));
  std::vector<std::string> paths;
  for (const Violation& violation : violations) paths.push_back(violation.path);
  return paths;
}

TEST(DataConfigTest, AcceptsEverySource) {
  EXPECT_THAT(BrokenRules("default_text {}"), IsEmpty());
  EXPECT_THAT(BrokenRules("default_text { tokenizer: BYTES }"), IsEmpty());
  EXPECT_THAT(BrokenRules("token_files { train: 'a' validation: 'b' }"),
              IsEmpty());
  EXPECT_THAT(BrokenRules("synthetic {} validation_fraction: 0"), IsEmpty());
}

TEST(DataConfigTest, NamesBrokenRules) {
  EXPECT_THAT(BrokenRules(""), ElementsAre("source"));
  EXPECT_THAT(BrokenRules("default_text { tokenizer: UNSPECIFIED }"),
              ElementsAre("default_text.tokenizer"));
  EXPECT_THAT(BrokenRules("token_files { format: UNSPECIFIED }"),
              ElementsAre("token_files.train", "token_files.format"));
  EXPECT_THAT(
      BrokenRules("token_files { train: 'a' train: '' validation: '' }"),
      ElementsAre("token_files.train[1]", "token_files.validation[0]"));
  EXPECT_THAT(BrokenRules("synthetic { epoch_tokens: 0 successors: 0 }"),
              ElementsAre("synthetic.epoch_tokens", "synthetic.successors"));
  EXPECT_THAT(BrokenRules("synthetic { epoch_tokens: 9223372036854775807 }"),
              ElementsAre("synthetic.epoch_tokens"));
  for (const char* fraction : {"-0.1", "0.51", "nan"}) {
    EXPECT_THAT(BrokenRules(absl::StrCat("synthetic {} validation_fraction: ",
                                         fraction)),
                ElementsAre("validation_fraction"));
  }
  EXPECT_THAT(BrokenRules("synthetic { document_tokens: -1 }"),
              ElementsAre("synthetic.document_tokens"));
  EXPECT_THAT(BrokenRules("synthetic { document_tokens: 7 "
                          "epoch_tokens: 1125899906842624 }"),
              ElementsAre("synthetic.document_tokens"));
}

TEST(DataConfigTest, NamesBrokenRulesOfValidationSets) {
  const auto rules = [](const std::string& sets) {
    return BrokenRules(absl::StrCat("token_files { train: 'a' ", sets, " }"));
  };
  EXPECT_THAT(rules("validation_sets { name: 'wiki-2.en' files: 'b' }"),
              IsEmpty());
  EXPECT_THAT(rules("validation_sets { files: '' }"),
              ElementsAre("token_files.validation_sets[0].name",
                          "token_files.validation_sets[0].files[0]"));
  EXPECT_THAT(rules("validation_sets { name: 'a/b' }"),
              ElementsAre("token_files.validation_sets[0].name",
                          "token_files.validation_sets[0].files"));
  EXPECT_THAT(rules("validation_sets { name: 'x' files: 'b' } "
                    "validation_sets { name: 'x' files: 'c' }"),
              ElementsAre("token_files.validation_sets[1].name"));
  EXPECT_THAT(rules("validation_sets { name: 'validation' files: 'b' }"),
              ElementsAre("token_files.validation_sets[0].name"));
}

TEST(DataConfigTest, NamesBrokenRulesOfDocuments) {
  EXPECT_THAT(BrokenRules("default_text {} documents: SEPARATE "
                          "train_across_documents: true"),
              IsEmpty());
  EXPECT_THAT(BrokenRules("default_text {} documents: UNSPECIFIED"),
              ElementsAre("documents"));
  EXPECT_THAT(BrokenRules("synthetic {} documents: SEPARATE"),
              ElementsAre("synthetic.document_tokens"));
  EXPECT_THAT(BrokenRules("synthetic { document_tokens: 5 }"), IsEmpty());
  const std::string files = "token_files { train: 'a' documents_";
  for (const char* field : {"begin_with", "end_with"}) {
    const std::string separate =
        absl::StrCat("documents: SEPARATE ", files, field);
    EXPECT_THAT(BrokenRules(separate + ": 0 }"), IsEmpty());
    EXPECT_THAT(BrokenRules(separate + ": -1 }"),
                ElementsAre(absl::StrCat("token_files.documents_", field)));
    // Has no effect on joined documents.
    EXPECT_THAT(BrokenRules(absl::StrCat(files, field, ": 0 }")),
                ElementsAre(absl::StrCat("token_files.documents_", field)));
  }
  EXPECT_THAT(BrokenRules("default_text {} train_across_documents: false"),
              ElementsAre("train_across_documents"));
}

absl::StatusOr<Dataset> Create(const std::string& text,
                               int64_t vocab_size = 300) {
  return CreateDataset(
      Parse(text), {.context_length = 16, .vocab_size = vocab_size, .seed = 5});
}

std::vector<int64_t> FirstTargets(const DataSource& source) {
  return Fill(source, {.global_batch = 1}).targets;
}

TEST(DatasetTest, Synthetic) {
  const auto dataset =
      Create("synthetic { epoch_tokens: 10000 } validation_fraction: 0.1", 100);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->train->tokens(), 10000);
  EXPECT_EQ(dataset->train->windows(), 625);
  ASSERT_NE(dataset->validation, nullptr);
  EXPECT_EQ(dataset->validation->tokens(), 1000);
  EXPECT_EQ(dataset->tokenizer, nullptr);
  EXPECT_DOUBLE_EQ(*dataset->unigram_entropy, std::log(100.0));
  const auto again = Create("synthetic { epoch_tokens: 10000 }", 100);
  const auto other = Create("synthetic { epoch_tokens: 10001 }", 100);
  EXPECT_EQ(dataset->fingerprint, again->fingerprint);
  EXPECT_NE(dataset->fingerprint, other->fingerprint);
  EXPECT_EQ(Create("synthetic {} validation_fraction: 0")->validation, nullptr);
}

TEST(DatasetTest, TheLargestEpochHasRoomForValidation) {
  const std::string config =
      "synthetic { epoch_tokens: 1125899906842624 } validation_fraction: 0.5";
  EXPECT_THAT(BrokenRules(config), IsEmpty());
  const auto dataset = Create(config);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->train->tokens(), int64_t{1} << 50);
  EXPECT_EQ(dataset->validation->tokens(), int64_t{1} << 49);
}

TEST(DatasetTest, TokenFilesHoldOutTheirTail) {
  std::vector<uint16_t> tokens(1000);
  for (int i = 0; i < 1000; ++i) tokens[i] = i % 300;
  const std::string path = TestPath("a.bin");
  Write(path, Bytes(tokens));
  const std::string held_out =
      absl::StrCat("token_files { format: NANOGPT train: '", path, "' train: '",
                   path, "' } shuffle: false validation_fraction: ");
  const std::string config = held_out + "0.1";
  const auto dataset = Create(config);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->train->tokens(), 1800);
  EXPECT_EQ(dataset->validation->tokens(), 200);
  EXPECT_EQ(FirstTargets(*dataset->train)[0], 1);
  EXPECT_EQ(FirstTargets(*dataset->validation)[0], 801 % 300);
  EXPECT_FALSE(dataset->unigram_entropy.has_value());
  EXPECT_THAT(Create(config, 299),
              Fails(StatusCode::kOutOfRange,
                    HasSubstr(absl::StrCat(path, ", byte 598: token 299"))));
  // Different training tokens have a different fingerprint.
  EXPECT_NE(Create(held_out + "0.2")->fingerprint, dataset->fingerprint);
  // A single token has no target.
  EXPECT_EQ(Create(held_out + "0.0005")->validation, nullptr);
  EXPECT_EQ(Create(held_out + "0.001")->validation->tokens(), 2);
}

// The places where positions restart in the first `rows` rows of 16 tokens.
std::vector<size_t> Starts(const DataSource& source, int64_t rows) {
  const std::vector<int64_t> positions =
      Fill(source, {.global_batch = rows}).positions;
  std::vector<size_t> starts;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] == 0) starts.push_back(i);
  }
  return starts;
}

// 24 tokens; 5 and 13 are `end_of_text`.
template <typename Token>
std::string TwoMarks(Token end_of_text) {
  std::vector<Token> tokens(24, 1);
  tokens[5] = tokens[13] = end_of_text;
  return Bytes(tokens);
}

std::string LlmC(int32_t magic, int32_t version, const std::string& tokens) {
  std::vector<int32_t> header = {magic, version, 24};
  header.resize(256);
  return Bytes(header) + tokens;
}

std::string SeparateConfig(const std::string& file,
                           const std::string& more = "") {
  return absl::StrCat("token_files { format: NANOGPT train: '", TestPath(file),
                      "' ", more,
                      "} documents: SEPARATE shuffle: false "
                      "validation_fraction: 0");
}

TEST(DocumentsTest, FormatsSayWhereDocumentsBegin) {
  Write(TestPath("nano.bin"), TwoMarks<uint16_t>(50256));
  Write(TestPath("gpt2.bin"), LlmC(20240520, 1, TwoMarks<uint16_t>(50256)));
  Write(TestPath("llama.bin"), LlmC(20240801, 7, TwoMarks<uint32_t>(128000)));
  for (const auto& [file, first] :
       {std::pair{"nano.bin", 6}, {"gpt2.bin", 5}, {"llama.bin", 5}}) {
    const auto dataset = Create(SeparateConfig(file), 128256);
    ASSERT_THAT(dataset, IsOk());
    // Two rows of 16 tokens; 23 tokens are inputs.
    EXPECT_THAT(Starts(*dataset->train, 2),
                ElementsAre(0, first, first + 8, 16, 23))
        << file;
    EXPECT_EQ(Fill(*dataset->train, {.global_batch = 2}).valid_targets, 21);
    EXPECT_THAT(Create(SeparateConfig(file), 50256),
                Fails(StatusCode::kInvalidArgument,
                      AllOf(HasSubstr("data.token_files.train: token "),
                            HasSubstr("but model.vocab_size is 50256"),
                            HasSubstr("data.token_files.documents_end_with"))));
  }
}

TEST(DocumentsTest, TheConfigMaySayWhereDocumentsBegin) {
  auto writer = TokenFileWriter::Create(TestPath("a.tok"), 300);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(
      (*writer)->Append({1, 1, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}),
      IsOk());
  ASSERT_THAT((*writer)->Finish(), IsOk());
  EXPECT_THAT(
      Create(SeparateConfig("a.tok")),
      Fails(StatusCode::kInvalidArgument,
            AllOf(HasSubstr("data.token_files.train: "),
                  HasSubstr("a.tok does not say which token"),
                  HasSubstr("set data.token_files.documents_end_with"))));
  const auto starts = [](const std::string& file, const std::string& more) {
    const auto dataset = Create(SeparateConfig(file, more));
    EXPECT_THAT(dataset, IsOk());
    return Starts(*dataset->train, 1);
  };
  EXPECT_THAT(starts("a.tok", "documents_begin_with: 9"), ElementsAre(0, 2));
  EXPECT_THAT(starts("a.tok", "documents_end_with: 9"), ElementsAre(0, 3));
  // It overrides the format.
  Write(TestPath("b.bin"), LlmC(20240520, 1, TwoMarks<uint16_t>(7)));
  EXPECT_THAT(starts("b.bin", "documents_end_with: 7"), ElementsAre(0, 6, 14));
}

TEST(DatasetTest, RefusesADamagedFileOfAFolder) {
  const std::string path = TestPath("a.tok");
  auto writer = TokenFileWriter::Create(path, 300);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Append(std::vector<int32_t>(100, 7)), IsOk());
  ASSERT_THAT((*writer)->Finish(), IsOk());
  const std::string config =
      absl::StrCat("token_files { train: '", path, "' }");
  EXPECT_THAT(Create(config), IsOk());
  FlipByte(path, 64 + 2 * 50);  // the token stays below 300
  EXPECT_THAT(Create(config),
              Fails(StatusCode::kDataLoss,
                    AllOf(HasSubstr("data.token_files.train: " + path),
                          HasSubstr("the tokens have checksum"))));
}

TEST(DocumentsTest, FilesAndSplitsKeepTheirDocuments) {
  std::vector<uint16_t> tokens(24, 1);
  tokens[5] = tokens[13] = 9;
  Write(TestPath("a.bin"), Bytes(tokens));
  const std::string more =
      absl::StrCat("train: '", TestPath("a.bin"), "' documents_end_with: 9 ");
  const auto whole = Create(SeparateConfig("a.bin", more));
  ASSERT_THAT(whole, IsOk());
  EXPECT_THAT(Starts(*whole->train, 3),
              ElementsAre(0, 6, 14, 16, 24, 30, 32, 38, 47));
  // Holds out the last 16 of 48 tokens.
  DataConfig config = Parse(SeparateConfig("a.bin", more));
  config.set_validation_fraction(1. / 3);
  const auto split =
      CreateDataset(config, {.context_length = 16, .vocab_size = 300});
  ASSERT_THAT(split, IsOk());
  EXPECT_THAT(Starts(*split->train, 2), ElementsAre(0, 6, 14, 16, 24, 30, 31));
  EXPECT_THAT(Starts(*split->validation, 1), ElementsAre(0, 6, 15));
}

TEST(DocumentsTest, TheIndexOfMegatronListsThem) {
  // 20 tokens in documents of 3 and 17.
  const std::vector<int64_t> counts = {2, 3}, documents = {0, 1, 2};
  Write(TestPath("a.idx"), std::string("MMIDIDX\0\0", 9) +
                               Bytes<uint64_t>({1}) + "\4" + Bytes(counts) +
                               Bytes<int32_t>({3, 17}) +
                               Bytes<int64_t>({0, 12}) + Bytes(documents));
  Write(TestPath("a.bin"), Bytes(std::vector<int32_t>(20, 9)));
  const auto dataset = Create(SeparateConfig("a.bin"));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(Starts(*dataset->train, 1), ElementsAre(0, 3));
  DataConfig config = Parse(SeparateConfig("a"));
  config.mutable_token_files()->set_format(TokenFiles::MEGATRON);
  const auto by_prefix =
      CreateDataset(config, {.context_length = 16, .vocab_size = 300});
  ASSERT_THAT(by_prefix, IsOk());
  EXPECT_EQ(by_prefix->fingerprint, dataset->fingerprint);
  // A pattern that matches both files reads the dataset once.
  for (const char* pattern : {"a.*", "*.idx", "*.bin"}) {
    EXPECT_EQ(Create(SeparateConfig(pattern))->train->tokens(), 20) << pattern;
  }
}

TEST(DocumentsTest, TakeNoMemoryIfTheyAreJoined) {
  constexpr int64_t kDocuments = 1'000'000;  // of a token each
  std::vector<int64_t> places(kDocuments), documents(kDocuments + 1);
  for (int64_t i = 0; i < kDocuments; ++i) places[i] = 4 * i;
  for (int64_t i = 0; i <= kDocuments; ++i) documents[i] = i;
  Write(TestPath("a.idx"), std::string("MMIDIDX\0\0", 9) +
                               Bytes<uint64_t>({1}) + "\4" +
                               Bytes<int64_t>({kDocuments, kDocuments + 1}) +
                               Bytes(std::vector<int32_t>(kDocuments, 1)) +
                               Bytes(places) + Bytes(documents));
  Write(TestPath("a.bin"), Bytes(std::vector<int32_t>(kDocuments, 9)));
  const std::string config =
      absl::StrCat("token_files { train: '", TestPath("a.bin"), "' } ");
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  if (allocated() < 8 * kDocuments) GTEST_SKIP() << "AddressSanitizer's malloc";
  for (const char* documents : {"JOINED", "SEPARATE"}) {
    const int64_t before = allocated();
    const auto dataset = Create(absl::StrCat(config, "documents: ", documents));
    ASSERT_THAT(dataset, IsOk());
    const bool lists_them = allocated() - before > 8 * kDocuments / 2;
    EXPECT_EQ(lists_them, absl::string_view(documents) == "SEPARATE");
  }
}

TEST(DocumentsTest, AreInTheFingerprintIfSeparate) {
  const std::string synthetic = "synthetic { epoch_tokens: 1000 ";
  const auto fingerprint = [](const std::string& config) {
    const auto dataset = Create(config);
    EXPECT_THAT(dataset, IsOk());
    return dataset->fingerprint;
  };
  const uint64_t joined = fingerprint(synthetic + "document_tokens: 9 }");
  // The fingerprint of a checkpoint from before documents could be separate.
  EXPECT_EQ(fingerprint(synthetic + "}"), Mix(Mix(5, 1000), Mix(300, 4)));
  EXPECT_NE(joined, fingerprint(synthetic + "}"));
  EXPECT_EQ(joined, fingerprint(synthetic + "document_tokens: 9 } "
                                            "documents: JOINED"));
  EXPECT_NE(joined, fingerprint(synthetic + "document_tokens: 9 } "
                                            "documents: SEPARATE"));
  Write(TestPath("a.bin"), TwoMarks<uint16_t>(9));
  const uint64_t ends =
      fingerprint(SeparateConfig("a.bin", "documents_end_with: 9"));
  const uint64_t begins =
      fingerprint(SeparateConfig("a.bin", "documents_begin_with: 9"));
  EXPECT_NE(ends, begins);
}

TEST(DatasetTest, RefusesTrainingDataShorterThanASequence) {
  for (const int tokens : {10, 16, 17}) {
    const std::string path = TestPath(absl::StrCat(tokens, ".bin"));
    Write(path, Bytes(std::vector<uint16_t>(tokens, 1)));
    const auto dataset = Create(
        absl::StrCat("token_files { format: NANOGPT train: '", path, "' }"));
    if (tokens == 17) {
      EXPECT_THAT(dataset, IsOk());
      continue;
    }
    EXPECT_THAT(
        dataset,
        Fails(StatusCode::kInvalidArgument,
              AllOf(HasSubstr(absl::StrCat(path, " has ", tokens, " tokens")),
                    HasSubstr("17 (model.context_length + 1)"),
                    HasSubstr(absl::StrCat("model.context_length to at most ",
                                           tokens - 1)))));
  }
  EXPECT_THAT(Create("synthetic { epoch_tokens: 16 }"),
              Fails(StatusCode::kInvalidArgument, HasSubstr("16 tokens")));
  // Generated for validation, not held out, so there is always enough.
  const auto short_epoch = Create("synthetic { epoch_tokens: 17 }");
  ASSERT_THAT(short_epoch, IsOk());
  EXPECT_EQ(short_epoch->validation->tokens(), 17);
}

TEST(DatasetTest, PatternsExpandToSortedMatches) {
  for (const char* name : {"train_2", "train_0", "train_1", "val_0"}) {
    Write(TestPath(name) + ".bin",
          Bytes(std::vector<uint16_t>(16, name[strlen(name) - 1] - '0')));
  }
  Write(TestPath("[odd].bin"), Bytes(std::vector<uint16_t>(16, 9)));
  const auto config = [](const std::string& train,
                         const std::string& validation) {
    return absl::StrCat("token_files { format: NANOGPT train: '",
                        TestPath(train), "' train: '", TestPath("[odd].bin"),
                        "' validation: '", TestPath(validation),
                        "' } shuffle: false");
  };
  const auto dataset = Create(config("train_*.bin", "val_?.bin"));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->train->tokens(), 4 * 16);
  EXPECT_EQ(dataset->validation->tokens(), 16);
  const std::vector<int64_t> ids =
      Fill(*dataset->train, {.global_batch = 4}).ids;
  EXPECT_THAT((std::vector<int64_t>{ids[0], ids[16], ids[32], ids[48]}),
              ElementsAre(0, 1, 2, 9));
  EXPECT_THAT(Create(config("none_*.bin", "val_0.bin")),
              Fails(StatusCode::kNotFound,
                    AllOf(HasSubstr("data.token_files.train: no file matches"),
                          HasSubstr(TestPath("none_*.bin")))));
  EXPECT_THAT(Create(config("train_*.bin", "val_[1-9].bin")),
              Fails(StatusCode::kNotFound,
                    HasSubstr("data.token_files.validation: no file matches")));
}

TEST(DatasetTest, ValidationFilesAreNamedInMessages) {
  Write(TestPath("train.bin"), Bytes(std::vector<uint16_t>(50, 1)));
  const auto create = [](const std::string& validation, int tokens) {
    Write(TestPath("val.bin"), Bytes(std::vector<uint16_t>(tokens, 1)));
    return Create(absl::StrCat("token_files { format: NANOGPT train: '",
                               TestPath("train.bin"), "' ", validation, " }"));
  };
  const std::string split =
      absl::StrCat("validation: '", TestPath("val.bin"), "'");
  const std::string set = absl::StrCat("validation_sets { name: 'x' files: '",
                                       TestPath("val.bin"), "' }");
  EXPECT_EQ(
      create(split, 5)->validation->description(),
      absl::StrCat("validation split of ", TestPath("val.bin"), ", 5 tokens"));
  EXPECT_THAT(create(split, 1),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("data.token_files.validation: "),
                          HasSubstr(TestPath("val.bin")))));
  EXPECT_THAT(create(set, 1),
              Fails(StatusCode::kInvalidArgument,
                    HasSubstr("data.token_files.validation_sets[0].files: ")));
  for (const std::string& validation : {split, set}) {
    EXPECT_NE(create(validation, 5)->validation_fingerprint,
              create(validation, 6)->validation_fingerprint);
    EXPECT_EQ(create(validation, 5)->fingerprint,
              create(validation, 6)->fingerprint);
  }
}

class PreparedTest : public ::testing::Test {
 protected:
  std::string Prepare(const std::string& name, int lines) {
    Write(TestPath(name + ".txt"), CppText(lines, lines));
    EXPECT_THAT(PrepareText({TestPath(name + ".txt")}, TestPath(name),
                            {.tokenizer = TokenizerKind::kBytes,
                             .validation_fraction = 0.2}),
                IsOk());
    return TestPath(name);
  }
};

TEST_F(PreparedTest, AFolderProvidesItsSplitsAndTokenizer) {
  const std::string folder = Prepare("a", 20000);
  const auto dataset =
      Create(absl::StrCat("token_files { train: '", folder, "' }"));
  ASSERT_THAT(dataset, IsOk());
  const auto manifest = OpenPreparedFolder(folder)->manifest;
  EXPECT_EQ(dataset->train->tokens(), manifest.train.tokens);
  EXPECT_EQ(dataset->validation->tokens(), manifest.validation.tokens);
  EXPECT_EQ(*dataset->unigram_entropy, manifest.unigram_entropy);
  ASSERT_NE(dataset->tokenizer, nullptr);
  EXPECT_EQ(dataset->tokenizer->vocab_size(), 257);
  EXPECT_THAT(dataset->train->description(), HasSubstr(folder));
  EXPECT_THAT(Create(absl::StrCat("token_files { train: '", folder, "' }"), 64),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("data.token_files.train: "),
                          HasSubstr("/tokenizer.model: the tokenizer has"),
                          HasSubstr("model.vocab_size is 64"))));
}

TEST_F(PreparedTest, TheTokenizerSaysWhereDocumentsEnd) {
  const std::vector<std::string> texts = {
      std::string(3, 'a'), std::string(9, 'b'), std::string(20, 'c')};
  Write(TestPath("a.txt"), absl::StrJoin(texts, "<|endoftext|>"));
  ASSERT_THAT(PrepareText({TestPath("a.txt")}, TestPath("a"),
                          {.tokenizer = TokenizerKind::kBytes,
                           .validation_fraction = 0}),
              IsOk());
  const auto dataset =
      Create(absl::StrCat("token_files { train: '", TestPath("a"),
                          "' } documents: SEPARATE shuffle: false"));
  ASSERT_THAT(dataset, IsOk());
  ASSERT_EQ(dataset->train->tokens(), 3 + 9 + 20 + 3);
  EXPECT_THAT(dataset->train->description(),
              HasSubstr("35 tokens in 3 documents"));
  // Three rows of 16 tokens; 34 tokens are inputs.
  EXPECT_THAT(Starts(*dataset->train, 3), ElementsAre(0, 4, 14, 16, 32, 34));
}

// As the tokenizer.json of several models does.
TEST_F(PreparedTest, ADocumentMayBeginWithTheTokenThatEndsOne) {
  const std::string second = "six seven eight nine ten eleven twelve";
  Write(TestPath("a.txt"), "one two<E>" + second);
  ASSERT_THAT(
      PrepareText({TestPath("a.txt")}, TestPath("a"),
                  {.tokenizer = TokenizerKind::kByteLevelBpe,
                   .tokenizer_file =
                       "tests/framework/data/tokenize/fixtures/llama3.json",
                   .validation_fraction = 0,
                   .separator = "<E>"}),
      IsOk());
  const auto folder = OpenPreparedFolder(TestPath("a"));
  ASSERT_THAT(folder, IsOk());
  EXPECT_THAT(folder->tokenizer->begin_ids(),
              ElementsAre(folder->tokenizer->eos_id()));
  const size_t first = folder->tokenizer->Encode("one two")->size() + 2;
  const auto dataset =
      Create(absl::StrCat("token_files { train: '", TestPath("a"),
                          "' } documents: SEPARATE shuffle: false"),
             1000);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_THAT(dataset->train->description(), HasSubstr(" in 2 documents"));
  EXPECT_THAT(Starts(*dataset->train, 1), ElementsAre(0, first));
  const std::vector<int64_t> targets = FirstTargets(*dataset->train);
  EXPECT_EQ(targets[first - 1], kIgnoredTarget);
  EXPECT_EQ(targets[first], folder->tokenizer->Encode(second)->front());
}

TEST_F(PreparedTest, FoldersCombine) {
  const std::string a = Prepare("a", 8000);
  const std::string b = Prepare("b", 9000);
  const auto dataset =
      Create(absl::StrCat("token_files { train: '", a, "' train: '", b,
                          "' validation: '", b, "' }"));
  ASSERT_THAT(dataset, IsOk());
  const auto of_a = OpenPreparedFolder(a)->manifest;
  const auto of_b = OpenPreparedFolder(b)->manifest;
  EXPECT_EQ(dataset->train->tokens(), of_a.train.tokens + of_b.train.tokens);
  EXPECT_EQ(dataset->validation->tokens(), of_b.validation.tokens);
  EXPECT_NE(dataset->tokenizer, nullptr);
}

TEST_F(PreparedTest, FurtherValidationSetsAreOpenedByName) {
  const std::string a = Prepare("a", 8000);
  const std::string b = Prepare("b", 9000);
  const auto with = [&](const std::string& files) {
    return Create(absl::StrCat("token_files { train: '", a,
                               "' validation_sets { name: 'b' files: '", files,
                               "' } }"));
  };
  const auto dataset = with(b);
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->validation->tokens(),
            OpenPreparedFolder(a)->manifest.validation.tokens);
  ASSERT_EQ(dataset->validation_sets.size(), 1u);
  EXPECT_EQ(dataset->validation_sets[0].name, "b");
  EXPECT_EQ(dataset->validation_sets[0].source->tokens(),
            OpenPreparedFolder(b)->manifest.validation.tokens);
  EXPECT_THAT(dataset->validation_sets[0].source->description(),
              HasSubstr("validation set b"));
  // The data that is trained on is the same.
  EXPECT_EQ(
      dataset->fingerprint,
      Create(absl::StrCat("token_files { train: '", a, "' }"))->fingerprint);
  const auto names_field =
      HasSubstr("data.token_files.validation_sets[0].files");
  EXPECT_THAT(with(TestPath("nothing")),
              Fails(StatusCode::kNotFound, names_field));
  Write(TestPath("short.bin"), Bytes(std::vector<uint16_t>{5}));
  EXPECT_THAT(with(TestPath("short.bin")),
              Fails(StatusCode::kInvalidArgument, names_field));
}

// Training's files may have been made by another tokenizer.
TEST_F(PreparedTest, AValidationSetHasNoTokenizerForTraining) {
  const std::string folder = Prepare("a", 8000);
  Write(TestPath("ids.bin"), Bytes(std::vector<uint16_t>(1000, 5)));
  const auto dataset = Create(
      absl::StrCat("token_files { train: '", TestPath("ids.bin"),
                   "' format: NANOGPT validation_sets { name: 'a' files: '",
                   folder, "' } } validation_fraction: 0.1"));
  ASSERT_THAT(dataset, IsOk());
  ASSERT_EQ(dataset->validation_sets.size(), 1u);
  EXPECT_EQ(dataset->tokenizer, nullptr);
}

TEST_F(PreparedTest, FilesOfDifferentFormatsAreReadAsOne) {
  const std::string folder = Prepare("a", 8000);
  std::vector<int32_t> header = {20240801, 7, 100};
  header.resize(256);
  Write(TestPath("llama.bin"),
        Bytes(header) + Bytes(std::vector<uint32_t>(100, 299)));
  Write(TestPath("nano.bin"), Bytes(std::vector<uint16_t>(50, 298)));
  const auto config = [&](const std::string& format) {
    return absl::StrCat("token_files { train: '", TestPath("nano.bin"),
                        "' train: '", TestPath("llama.bin"), "' train: '",
                        folder, "' format: ", format,
                        " } shuffle: false validation_fraction: 0");
  };
  const auto dataset = Create(config("NANOGPT"));
  ASSERT_THAT(dataset, IsOk());
  EXPECT_EQ(dataset->train->tokens(),
            50 + 100 + OpenPreparedFolder(folder)->manifest.train.tokens);
  const std::vector<int64_t> ids =
      Fill(*dataset->train, {.global_batch = 9}).ids;
  EXPECT_EQ(ids[49], 298);
  EXPECT_EQ(ids[50], 299);
  EXPECT_THAT(Create(config("DETECT")),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(TestPath("nano.bin")),
                          HasSubstr("token_files.format = NANOGPT"))));
}

// The whole path with its own cache and the byte vocabulary, which is fast.
TEST(DefaultTextTest, IsPreparedOnceAndRepaired) {
  ASSERT_EQ(at::ones({2}).sum().item<float>(), 2);  // LibTorch is loaded
  setenv("XDG_CACHE_HOME", TestPath("cache").c_str(), 1);
  const auto files = DefaultTextFiles();
  ASSERT_THAT(files, IsOk());
  EXPECT_GT(files->size(), 1000u);
  EXPECT_TRUE(std::is_sorted(files->begin(), files->end()));
  for (const std::string& file : *files) {
    EXPECT_FALSE(absl::StrContains(file, "/ATen/ops/")) << file;
  }

  std::vector<uint64_t> fingerprints(2);
  std::vector<int> encodings(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const auto dataset = CreateDataset(
          Parse("default_text { tokenizer: BYTES }"),
          {.context_length = 128,
           .vocab_size = 10000,
           .progress = [&, i](const Progress& progress) {
             encodings[i] += absl::StartsWith(progress.phase, "encoding") &&
                             progress.fraction == 0;
           }});
      ASSERT_THAT(dataset, IsOk());
      fingerprints[i] = dataset->fingerprint;
      EXPECT_GT(dataset->train->tokens(), 10'000'000);
      EXPECT_GT(dataset->validation->tokens(), 50'000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(encodings[0] + encodings[1], 1);
  EXPECT_EQ(fingerprints[0], fingerprints[1]);

  const auto found =
      Glob(TestPath("cache") + "/tessera/datasets/*/train.tok").value();
  ASSERT_EQ(found.size(), 1u);
  const std::string folder = found[0].substr(0, found[0].rfind('/'));
  // Simulates a cache that cannot be written, also for root: the lock does not
  // open.
  ASSERT_THAT(RemoveTree(folder + ".lock"), IsOk());
  ASSERT_THAT(MakeDirectories(folder + ".lock"), IsOk());
  EXPECT_THAT(Create("default_text { tokenizer: BYTES }"), IsOk());
  FlipByte(found[0], 1000);
  const auto locked = Create("default_text { tokenizer: BYTES }");
  EXPECT_FALSE(locked.ok());
  EXPECT_THAT(std::string(locked.status().message()),
              AllOf(HasSubstr(folder + ".lock"),
                    HasSubstr("set XDG_CACHE_HOME to a folder that can be")));
  ASSERT_THAT(RemoveTree(folder + ".lock"), IsOk());
  // What a killed process leaves behind.
  ASSERT_THAT(MakeDirectories(folder + ".partial-1/x"), IsOk());
  const auto healed = Create("default_text { tokenizer: BYTES }");
  ASSERT_THAT(healed, IsOk());
  EXPECT_EQ(healed->fingerprint, fingerprints[0]);
  EXPECT_THAT(Glob(TestPath("cache") + "/tessera/datasets/*.partial-*").value(),
              IsEmpty());

  // An error that says nothing about the contents, as too many open files.
  ASSERT_EQ(
      rename((folder + "/tokenizer.model").c_str(), TestPath("kept").c_str()),
      0);
  ASSERT_THAT(MakeDirectory(folder + "/tokenizer.model"), IsOk());
  EXPECT_FALSE(Create("default_text { tokenizer: BYTES }").ok());
  EXPECT_TRUE(FileExists(found[0]));
  ASSERT_THAT(RemoveTree(folder + "/tokenizer.model"), IsOk());
  ASSERT_EQ(
      rename(TestPath("kept").c_str(), (folder + "/tokenizer.model").c_str()),
      0);

  // Without locks another process may prepare it at the same time.
  const std::string other = folder + ".partial-1";
  ASSERT_EQ(rename(folder.c_str(), other.c_str()), 0);
  has_locks = false;
  const auto second =
      CreateDataset(Parse("default_text { tokenizer: BYTES }"),
                    {.context_length = 128,
                     .vocab_size = 10000,
                     .progress = [&](const Progress& progress) {
                       if (!absl::StartsWith(progress.phase, "encoding"))
                         return;
                       if (progress.fraction > 0) return;
                       EXPECT_EQ(rename(other.c_str(), folder.c_str()), 0);
                     }});
  has_locks = true;
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(second->fingerprint, fingerprints[0]);

  EXPECT_THAT(Create("default_text {}", 320),
              Fails(StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("raise model.vocab_size"),
                          HasSubstr("data.default_text.tokenizer to BYTES"),
                          Not(HasSubstr("--")))));
}

}  // namespace
}  // namespace tessera
