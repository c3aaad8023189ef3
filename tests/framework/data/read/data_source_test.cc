#include "framework/data/read/data_source.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "framework/data/read/document_index.h"
#include "framework/data/read/permutation.h"
#include "framework/data/read/sampler.h"
#include "framework/data/read/token_sequence.h"
#include "framework/data/read/token_validation_split.h"
#include "gtest/gtest.h"
#include "tests/framework/data/data_test_util.h"

namespace tessera {
namespace {

using ::absl::StatusCode;
using testing::Bytes;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Fails;
using testing::Fill;
using testing::Filled;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::TestPath;
using testing::Write;

class PermutationTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(PermutationTest, IsABijection) {
  const int64_t size = GetParam();
  for (uint64_t key = 0; key < 5; ++key) {
    const Permutation permutation(size, key);
    std::set<int64_t> images;
    for (int64_t i = 0; i < size; ++i) images.insert(permutation(i));
    EXPECT_EQ(static_cast<int64_t>(images.size()), size) << "key " << key;
    EXPECT_EQ(*images.begin(), 0);
    EXPECT_EQ(*images.rbegin(), size - 1);
    for (int64_t i = 0; i < size; ++i) {
      ASSERT_EQ(permutation.Inverse(permutation(i)), i);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationTest,
                         ::testing::Values(1, 2, 3, 4, 5, 16, 17, 127, 1000,
                                           65537));

TEST(PermutationTest, SupportsSizesNearTheMaximum) {
  const int64_t size = (int64_t{1} << 62) - 1;
  const Permutation permutation(size, 3);
  for (const int64_t index : {int64_t{0}, int64_t{12345}, size - 1}) {
    const int64_t image = permutation(index);
    EXPECT_GE(image, 0);
    EXPECT_LT(image, size);
    EXPECT_EQ(permutation.Inverse(image), index);
  }
}

// Over all keys, each element goes to each position equally often. A shuffle
// that omits some orders would fail.
TEST(PermutationTest, IsUniformOverKeys) {
  constexpr int kSize = 5;
  constexpr int kKeys = 20000;
  std::map<std::pair<int64_t, int64_t>, int> counts;
  for (int key = 0; key < kKeys; ++key) {
    const Permutation permutation(kSize, Mix(17, key));
    for (int64_t i = 0; i < kSize; ++i) ++counts[{i, permutation(i)}];
  }
  // 4000 expected, standard deviation 57.
  for (const auto& [pair, count] : counts) EXPECT_NEAR(count, 4000, 350);
  EXPECT_EQ(counts.size(), kSize * kSize);
}

// Tokens 0, 1, 2, ...: each token is its own position.
class CountingSequence : public TokenSequence {
 public:
  explicit CountingSequence(int64_t tokens,
                            std::vector<int64_t> document_starts = {})
      : tokens_(tokens), documents_(std::move(document_starts)) {}
  int64_t tokens() const override { return tokens_; }
  DocumentIndex documents() const override { return documents_; }
  absl::Status Read(int64_t begin, absl::Span<int64_t> out) const override {
    std::iota(out.begin(), out.end(), begin);
    EXPECT_LE(begin + static_cast<int64_t>(out.size()), tokens_);
    return absl::OkStatus();
  }

 private:
  const int64_t tokens_;
  const DocumentIndex documents_;
};

std::unique_ptr<DataSource> CountingSource(int64_t tokens, int64_t context,
                                           bool shuffle = true,
                                           uint64_t seed = 7) {
  auto source = DataSource::Create(std::make_shared<CountingSequence>(tokens),
                                   {.context_length = context,
                                    .vocab_size = tokens,
                                    .shuffle = shuffle,
                                    .seed = seed,
                                    .description = "counting"});
  EXPECT_THAT(source, IsOk());
  return *std::move(source);
}

struct Epoch {
  int64_t tokens;
  int64_t context;
  bool shuffle;
};

class EpochTest : public ::testing::TestWithParam<Epoch> {};

TEST_P(EpochTest, EveryTokenExceptTheFirstIsATargetOnce) {
  const auto [tokens, context, shuffle] = GetParam();
  const auto source = CountingSource(tokens, context, shuffle);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> seen(tokens);
    int64_t valid = 0;
    for (int64_t n = 0; n < source->windows(); ++n) {
      const Filled batch =
          Fill(*source, {.first_sample = epoch * source->windows() + n});
      valid += batch.valid_targets;
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        if (batch.targets[i] == -1) continue;
        ++seen[batch.targets[i]];
        EXPECT_EQ(batch.ids[i] + 1, batch.targets[i]);
      }
    }
    EXPECT_EQ(seen[0], 0);
    seen.erase(seen.begin());
    EXPECT_THAT(seen, Each(1)) << "epoch " << epoch;
    EXPECT_EQ(valid, tokens - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, EpochTest,
    ::testing::Values(Epoch{2, 1, true}, Epoch{2, 8, true}, Epoch{9, 8, true},
                      Epoch{10, 8, true}, Epoch{1000, 8, true},
                      Epoch{1001, 8, true}, Epoch{1000, 7, false},
                      Epoch{50, 64, true}));

TEST(DataSourceTest, PadsTheLastWindow) {
  const auto source = CountingSource(8, 5, /*shuffle=*/false);
  ASSERT_EQ(source->windows(), 2);
  const Filled batch = Fill(*source, {.global_batch = 2});
  EXPECT_THAT(batch.ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, -1, -1, -1));
  EXPECT_EQ(batch.valid_targets, 7);
}

TEST(DataSourceTest, EpochsAndSeedsHaveDifferentOrders) {
  const auto order = [](const DataSource& source, int64_t epoch) {
    return Fill(source, {.first_sample = epoch * source.windows(),
                         .global_batch = source.windows()})
        .ids;
  };
  const auto source = CountingSource(1000, 10);
  const auto other_seed = CountingSource(1000, 10, true, 8);
  EXPECT_EQ(order(*source, 0), order(*CountingSource(1000, 10), 0));
  EXPECT_NE(order(*source, 0), order(*source, 1));
  EXPECT_NE(order(*source, 0), order(*other_seed, 0));
  auto sorted = order(*source, 0);
  EXPECT_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
}

// The global batches of a run, assembled from the ranks' shares.
std::vector<int64_t> GlobalOrder(const DataSource& source, int world_size,
                                 int64_t first_step, int64_t steps) {
  constexpr int64_t kGlobalBatch = 8;
  std::vector<int64_t> targets;
  for (int64_t step = first_step; step < first_step + steps; ++step) {
    std::set<int64_t> valid;
    int64_t counted = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const Filled batch = Fill(source, {.first_sample = step * kGlobalBatch,
                                         .global_batch = kGlobalBatch,
                                         .rank = rank,
                                         .world_size = world_size});
      valid.insert(batch.valid_targets);
      counted += std::count_if(batch.targets.begin(), batch.targets.end(),
                               [](int64_t target) { return target >= 0; });
      targets.insert(targets.end(), batch.targets.begin(), batch.targets.end());
    }
    // Each rank knows the total of all ranks without communication.
    EXPECT_THAT(valid, ElementsAre(counted));
  }
  return targets;
}

TEST(DataSourceTest, WorldSizesShareOneGlobalOrder) {
  // 100 windows: steps of 8 cross the end of an epoch with its short window.
  const auto source = CountingSource(995, 10);
  const auto expected = GlobalOrder(*source, 1, 0, 30);
  for (const int world_size : {2, 4, 8}) {
    EXPECT_EQ(GlobalOrder(*source, world_size, 0, 30), expected)
        << world_size << " ranks";
  }
}

TEST(DataSourceTest, ResumesMidEpochAtAnotherWorldSize) {
  const auto straight = GlobalOrder(*CountingSource(995, 10), 4, 0, 30);
  auto resumed = GlobalOrder(*CountingSource(995, 10), 4, 0, 17);
  const auto rest = GlobalOrder(*CountingSource(995, 10), 2, 17, 13);
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  EXPECT_EQ(resumed, straight);
}

TEST(DataSourceTest, EndSampleMakesPadding) {
  const auto source = CountingSource(100, 10, /*shuffle=*/false);
  ASSERT_EQ(source->windows(), 10);
  BatchRequest request = {.first_sample = 8,
                          .global_batch = 4,
                          .rank = 1,
                          .world_size = 2,
                          .end_sample = 10};
  const Filled batch = Fill(*source, request);
  EXPECT_THAT(batch.targets, Each(-1));
  EXPECT_THAT(batch.ids, Each(0));
  EXPECT_EQ(batch.valid_targets, 10 + 9);
}

// Tokens 0, 1, 2, ... in documents that begin at 0 and at `starts`.
std::unique_ptr<DataSource> DocumentSource(int64_t tokens,
                                           std::vector<int64_t> starts,
                                           DataSource::Options options) {
  options.vocab_size = tokens;
  options.separate_documents = true;
  auto source = DataSource::Create(
      std::make_shared<CountingSequence>(tokens, std::move(starts)), options);
  EXPECT_THAT(source, IsOk());
  return *std::move(source);
}

TEST(SeparateDocumentsTest, RestartsPositionsAndIgnoresTargetsBetween) {
  // Documents of 2, 1, 2 (to the end of a row), 7 (two rows) and 2 tokens.
  const auto source = DocumentSource(14, {2, 3, 5, 12},
                                     {.context_length = 5, .shuffle = false});
  const Filled batch = Fill(*source, {.global_batch = 3});
  EXPECT_THAT(batch.ids,
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0));
  EXPECT_THAT(batch.positions,
              ElementsAre(0, 1, 0, 0, 1, 0, 1, 2, 3, 4, 0, 1, 0, 0, 1));
  EXPECT_THAT(batch.targets, ElementsAre(1, -1, -1, 4, -1, 6, 7, 8, 9, 10, 11,
                                         -1, 13, -1, -1));
  EXPECT_EQ(batch.valid_targets, 9);
  EXPECT_EQ(source->CausalPairsPerRow(), ((3 + 1 + 3) + 15 + (3 + 1 + 3)) / 3.);
}

TEST(SeparateDocumentsTest, CanTrainAcrossDocuments) {
  const auto joined = CountingSource(14, 5);
  const auto source = DocumentSource(
      14, {2, 3, 5, 12},
      {.context_length = 5, .seed = 7, .train_across_documents = true});
  const BatchRequest request = {.global_batch = 3};
  EXPECT_EQ(Fill(*source, request).targets, Fill(*joined, request).targets);
  EXPECT_EQ(Fill(*source, request).valid_targets, 13);
  EXPECT_EQ(source->CausalPairsPerRow(), (7 + 15 + 7) / 3.);
  EXPECT_EQ(joined->CausalPairsPerRow(), 15);
  EXPECT_EQ(joined->CausalPairsPerRow(2), 9);
}

TEST(SeparateDocumentsTest, TheLastTokenMayBeADocument) {
  // It is only a target.
  const auto source =
      DocumentSource(6, {5}, {.context_length = 5, .shuffle = false});
  const Filled batch = Fill(*source, {.global_batch = 1});
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, -1));
  EXPECT_EQ(source->CausalPairsPerRow(), 15);
}

TEST(SeparateDocumentsTest, PaddingIsADocument) {
  const auto source =
      DocumentSource(7, {5}, {.context_length = 5, .shuffle = false});
  const Filled batch =
      Fill(*source, {.first_sample = 1, .global_batch = 2, .end_sample = 2});
  EXPECT_THAT(batch.positions, ElementsAre(0, 0, 1, 2, 3, 0, 1, 2, 3, 4));
  EXPECT_THAT(batch.targets,
              ElementsAre(6, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_EQ(batch.valid_targets, 1);
}

TEST(SeparateDocumentsTest, ABatchWithoutTargetsHasTheDivisorOne) {
  const auto source = DocumentSource(4, {1, 2, 3}, {.context_length = 3});
  const Filled batch = Fill(*source, {.global_batch = 1});
  EXPECT_THAT(batch.targets, Each(-1));
  EXPECT_THAT(batch.positions, Each(0));
  EXPECT_EQ(batch.valid_targets, 1);
}

// Compares with the rules, token by token.
TEST(SeparateDocumentsTest, AgreesWithADirectComputation) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto below = [seed, i = 0](int64_t bound) mutable {
      return static_cast<int64_t>(Mix(seed, i++) % bound);
    };
    const int64_t tokens = 2 + below(60), context = 1 + below(12);
    const int64_t longest = 1 + below(30);
    std::vector<int64_t> starts;
    for (int64_t at = 1 + below(longest); at < tokens;
         at += 1 + below(longest)) {
      starts.push_back(at);
    }
    const std::set<int64_t> begins(starts.begin(), starts.end());
    const auto source = DocumentSource(
        tokens, starts, {.context_length = context, .shuffle = false});
    const Filled batch = Fill(*source, {.global_batch = source->windows()});
    const int64_t latest = 1 + below(context + 1);
    int64_t position = 0, valid = 0, pairs = 0, latest_pairs = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(batch.ids.size()); ++i) {
      if (i % context == 0 || begins.contains(i) || i == tokens - 1) {
        position = 0;
      }
      EXPECT_EQ(batch.positions[i], position) << seed << ", token " << i;
      pairs += ++position;
      latest_pairs += std::min(position, latest);
      const bool ignored = i + 1 >= tokens || begins.contains(i + 1);
      EXPECT_EQ(batch.targets[i], ignored ? -1 : i + 1) << seed << ", " << i;
      if (!ignored) ++valid;
    }
    EXPECT_EQ(batch.valid_targets, std::max<int64_t>(valid, 1)) << seed;
    const auto rows = static_cast<double>(source->windows());
    EXPECT_EQ(source->CausalPairsPerRow(), static_cast<double>(pairs) / rows)
        << seed;
    EXPECT_EQ(source->CausalPairsPerRow(latest),
              static_cast<double>(latest_pairs) / rows)
        << seed;
  }
}

TEST(SeparateDocumentsTest, WorldSizesShareOneGlobalOrder) {
  std::vector<int64_t> starts;
  for (int64_t at = 1; at < 995; at += 1 + Mix(at) % 20) starts.push_back(at);
  const auto source =
      DocumentSource(995, starts, {.context_length = 10, .seed = 7});
  // Compares the counts of all ranks with the targets that are not ignored.
  const auto expected = GlobalOrder(*source, 1, 0, 30);
  for (const int world_size : {2, 4, 8}) {
    EXPECT_EQ(GlobalOrder(*source, world_size, 0, 30), expected)
        << world_size << " ranks";
  }
  auto resumed = GlobalOrder(*source, 4, 0, 17);
  const auto rest = GlobalOrder(*source, 2, 17, 13);
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  EXPECT_EQ(resumed, expected);
}

TEST(SeparateDocumentsTest, CountsThePairsOfAHugeDocument) {
  const int64_t context = int64_t{1} << 20;
  const auto source =
      DocumentSource((int64_t{1} << 50) + 1, {1}, {.context_length = context});
  EXPECT_NEAR(source->CausalPairsPerRow() / (context * (context + 1.) / 2), 1,
              1e-9);
}

TEST(DataSourceTest, RejectsABatchThatDoesNotDivide) {
  const auto source = CountingSource(100, 10);
  const auto fails = Fails(StatusCode::kInvalidArgument,
                           HasSubstr("multiple of the number of ranks"));
  for (const BatchRequest& request : {
           BatchRequest{.global_batch = 6, .world_size = 4},
           BatchRequest{.global_batch = 4, .rank = 4, .world_size = 4},
           BatchRequest{.first_sample = -1},
           BatchRequest{.global_batch = 0},
       }) {
    EXPECT_THAT(source->Fill(request, {}, {}), fails);
  }
}

TEST(DataSourceTest, RefusesASequenceWithoutTargets) {
  EXPECT_THAT(DataSource::Create(std::make_shared<CountingSequence>(1),
                                 {.context_length = 4}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("1 tokens")));
  EXPECT_THAT(DataSource::Create(std::make_shared<CountingSequence>(9),
                                 {.context_length = 0}),
              Fails(StatusCode::kInvalidArgument, HasSubstr("context")));
}

std::vector<int64_t> Starts(const DocumentIndex& documents) {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < documents.size(); ++i) {
    starts.push_back(documents[i]);
  }
  return starts;
}

TEST(DocumentIndexTest, ASliceBeginsADocument) {
  const DocumentIndex whole({2, 3, 7});
  EXPECT_THAT(Starts(DocumentIndex()), ElementsAre());
  EXPECT_THAT(Starts(whole), ElementsAre(2, 3, 7));
  EXPECT_THAT(Starts(whole.Slice(0, 8)), ElementsAre(2, 3, 7));
  EXPECT_THAT(Starts(whole.Slice(1, 7)), ElementsAre(1, 2));
  EXPECT_THAT(Starts(whole.Slice(2, 8)), ElementsAre(1, 5));
  EXPECT_THAT(Starts(whole.Slice(1, 9).Slice(1, 7)), ElementsAre(1, 5));
  EXPECT_THAT(Starts(whole.Slice(7, 7)), ElementsAre());
  EXPECT_EQ(whole.Slice(1, 4).Hash(), DocumentIndex({1, 2}).Hash());
  EXPECT_NE(whole.Slice(1, 4).Hash(), whole.Slice(0, 4).Hash());
  EXPECT_NE(DocumentIndex({1}).Hash(), DocumentIndex().Hash());
}

TEST(TokenSequenceTest, FilesReadAsOne) {
  std::vector<TokenFile> files;
  for (const std::vector<uint16_t>& tokens :
       std::vector<std::vector<uint16_t>>{{1, 2, 3}, {4}, {5, 6}}) {
    const std::string path = TestPath(std::to_string(files.size()));
    Write(path, Bytes(tokens));
    auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
    ASSERT_THAT(file, IsOk());
    EXPECT_THAT(file->LimitTokens(7, EndOfText{1, false}), IsOk());
    files.push_back(*std::move(file));
  }
  const std::shared_ptr<const TokenSequence> whole =
      CreateFileSequence(std::move(files));
  ASSERT_EQ(whole->tokens(), 6);
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t end = begin; end <= 6; ++end) {
      std::vector<int64_t> expected(end - begin), read(end - begin);
      std::iota(expected.begin(), expected.end(), begin + 1);
      EXPECT_THAT(whole->Read(begin, absl::MakeSpan(read)), IsOk());
      EXPECT_EQ(read, expected);
    }
  }
  EXPECT_THAT(Starts(whole->documents()), ElementsAre(1, 3, 4));
  const auto part = CreateSubsequence(whole, 2, 5);
  EXPECT_THAT(Starts(part->documents()), ElementsAre(1, 2));
  std::vector<int64_t> read(2);
  EXPECT_THAT(part->Read(1, absl::MakeSpan(read)), IsOk());
  EXPECT_EQ(part->tokens(), 3);
  EXPECT_THAT(read, ElementsAre(4, 5));
}

TEST(TokenValidationSplitTest, HoldsOutTheLastTokens) {
  const auto first_held_out = [](const TokenSplit& split) {
    int64_t token = 0;
    EXPECT_THAT(split.validation->Read(0, absl::MakeSpan(&token, 1)), IsOk());
    return token;
  };
  const auto whole = std::make_shared<CountingSequence>(1000);
  const TokenSplit tenth = HoldOutLastTokens(whole, 0.1004);
  EXPECT_EQ(tenth.train->tokens(), 900);
  EXPECT_EQ(tenth.validation->tokens(), 100);
  EXPECT_EQ(first_held_out(tenth), 900);
  // A single token has no target.
  EXPECT_EQ(HoldOutLastTokens(whole, 0.002).validation->tokens(), 2);
  EXPECT_EQ(HoldOutLastTokens(whole, 0.001).validation, nullptr);
  EXPECT_EQ(HoldOutLastTokens(whole, 0.001).train->tokens(), 1000);
  EXPECT_EQ(first_held_out(SplitTokensAt(whole, 999)), 999);
  EXPECT_EQ(SplitTokensAt(whole, 1000).validation, nullptr);
}

TEST(DataSourceTest, FillNamesATruncatedFile) {
  const std::string path = TestPath("train.bin");
  Write(path, Bytes(std::vector<uint16_t>(1000, 1)));
  std::vector<TokenFile> files;
  auto file = TokenFile::Open(path, TokenFileFormat::kNanoGpt);
  ASSERT_THAT(file, IsOk());
  files.push_back(*std::move(file));
  const auto source =
      DataSource::Create(CreateFileSequence(std::move(files)),
                         {.context_length = 10, .vocab_size = 2});
  ASSERT_THAT(source, IsOk());
  Filled batch = Fill(**source, {.global_batch = 4});
  Write(path, "");
  EXPECT_THAT((*source)->Fill({.global_batch = 4}, absl::MakeSpan(batch.ids),
                              absl::MakeSpan(batch.targets)),
              Fails(StatusCode::kDataLoss, HasSubstr(path)));
}

class SyntheticTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 200000;
  static constexpr int64_t kVocab = 50;
  static constexpr int64_t kSuccessors = 4;

  std::vector<int64_t> ReadAll(uint64_t seed) {
    std::vector<int64_t> tokens(kTokens);
    EXPECT_THAT(Make(seed)->Read(0, absl::MakeSpan(tokens)), IsOk());
    return tokens;
  }
  std::unique_ptr<TokenSequence> Make(uint64_t seed) {
    return CreateSyntheticSequence({kTokens, kVocab, kSuccessors, seed});
  }
};

TEST_F(SyntheticTest, IsAPureFunctionOfThePosition) {
  const std::vector<int64_t> all = ReadAll(1);
  for (const int64_t begin : {0, 1, 4095, 4096, 50000}) {
    std::vector<int64_t> part(5000);
    EXPECT_THAT(Make(1)->Read(begin, absl::MakeSpan(part)), IsOk());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin))
        << "from " << begin;
  }
  EXPECT_NE(all, ReadAll(2));
}

TEST_F(SyntheticTest, DocumentsHaveTheStatedLengths) {
  const auto make = [](int64_t document_tokens) {
    return CreateSyntheticSequence(
        {kTokens, kVocab, kSuccessors, /*seed=*/1, document_tokens});
  };
  EXPECT_EQ(make(0)->documents().size(), 0);
  EXPECT_EQ(make(1)->documents().size(), kTokens - 1);
  const DocumentIndex documents = make(20)->documents();
  std::map<int64_t, double> lengths;
  for (int64_t i = 1; i < documents.size(); ++i) {
    ++lengths[documents[i] - documents[i - 1]];
  }
  EXPECT_EQ(lengths.begin()->first, 1);
  EXPECT_EQ(lengths.rbegin()->first, 39);
  for (const auto& [length, count] : lengths) {
    // 256 of 10,000 expected, standard deviation 16.
    EXPECT_NEAR(count, kTokens / 20 / 39., 80) << length;
  }
  EXPECT_EQ(documents.Hash(), make(20)->documents().Hash());
  EXPECT_NE(documents.Hash(), make(21)->documents().Hash());
}

// Its first token is random, not a successor of the last token before it.
TEST_F(SyntheticTest, ADocumentRestartsTheChain) {
  const auto sequence = CreateSyntheticSequence(
      {kTokens, kVocab, kSuccessors, /*seed=*/1, /*document_tokens=*/20});
  std::vector<int64_t> all(kTokens);
  EXPECT_THAT(sequence->Read(0, absl::MakeSpan(all)), IsOk());
  std::vector<int64_t> part(5000);
  EXPECT_THAT(sequence->Read(7000, absl::MakeSpan(part)), IsOk());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 7000));
  const DocumentIndex documents = sequence->documents();
  std::map<int64_t, std::set<int64_t>> within, between;
  int64_t document = 0;
  for (int64_t i = 1; i < kTokens; ++i) {
    const bool begins = document < documents.size() && documents[document] == i;
    if (begins) ++document;
    if (begins || i % 4096 == 0) {
      between[all[i - 1]].insert(all[i]);
    } else {
      within[all[i - 1]].insert(all[i]);
    }
  }
  for (int64_t token = 0; token < kVocab; ++token) {
    EXPECT_EQ(within[token].size(), kSuccessors);
    EXPECT_GT(between[token].size(), kVocab / 2);
  }
}

// The entropies stated in token_sequence.h and data_config.proto.
TEST_F(SyntheticTest, HasTheStatedEntropies) {
  const std::vector<int64_t> all = ReadAll(1);
  std::map<int64_t, double> unigram;
  std::map<int64_t, std::map<int64_t, double>> bigram;
  for (int64_t i = 0; i < kTokens; ++i) {
    ++unigram[all[i]];
    if (i % 4096 != 0) ++bigram[all[i - 1]][all[i]];
  }
  double entropy = 0;
  for (const auto& [token, count] : unigram) {
    entropy -= count / kTokens * std::log(count / kTokens);
    EXPECT_EQ(bigram[token].size(), kSuccessors);
  }
  EXPECT_NEAR(entropy, std::log(kVocab), 2e-3);
  double conditional = 0;
  for (const auto& [token, next] : bigram) {
    for (const auto& [successor, count] : next) {
      conditional -= count / kTokens * std::log(count / unigram[token]);
    }
  }
  EXPECT_NEAR(conditional, std::log(kSuccessors), 5e-3);
}

}  // namespace
}  // namespace tessera
