#include "framework/data/tokenize/bpe_trainer.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/byte_level.h"
#include "framework/data/tokenize/byte_level_tokenizer.h"
#include "framework/data/tokenize/pre_tokenizer.h"
#include "framework/data/tokenize/tokenizer_json.h"
#include "framework/data/tokenize/utf8.h"

namespace tessera {
namespace {

constexpr absl::string_view kEndOfText = "<|endoftext|>";
constexpr int64_t kMinPairCount = 2;

using Pair = std::pair<int32_t, int32_t>;

// A distinct pre-token of the text.
struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

// A pair that may be merged next. Its count is an upper bound: the pairs that a
// merge takes away are subtracted when the candidate is the first.
struct Candidate {
  Pair pair;
  int64_t count = 0;
  std::vector<int32_t> words;  // that have had the pair

  bool operator<(const Candidate& other) const {
    if (count != other.count) return count < other.count;
    return pair > other.pair;
  }
};

// Replaces a pair in the word by the token `merged`, from left to right. Calls
// `change(pair, by)` for each neighbouring pair that is gone or new.
template <typename Change>
void MergeInWord(Pair pair, int32_t merged, Word* word, Change change) {
  std::vector<int32_t>& symbols = word->symbols;
  size_t kept = 0;
  for (size_t i = 0; i < symbols.size(); ++i, ++kept) {
    if (i + 1 == symbols.size() || Pair(symbols[i], symbols[i + 1]) != pair) {
      symbols[kept] = symbols[i];
      continue;
    }
    if (kept > 0) {
      change(Pair(symbols[kept - 1], pair.first), -1);
      change(Pair(symbols[kept - 1], merged), 1);
    }
    ++i;
    if (i + 1 < symbols.size()) {
      change(Pair(pair.second, symbols[i + 1]), -1);
      change(Pair(merged, symbols[i + 1]), 1);
    }
    symbols[kept] = merged;
  }
  symbols.resize(kept);
}

class Trainer {
 public:
  Trainer(std::vector<Word> words, TokenizerJson* result)
      : words_(std::move(words)), result_(result) {
    for (size_t id = 0; id < result->tokens.size(); ++id) {
      ids_.emplace(result->tokens[id], id);
    }
  }

  void Run(size_t vocab_size) {
    Places places;
    for (size_t i = 0; i < words_.size(); ++i) {
      const std::vector<int32_t>& symbols = words_[i].symbols;
      for (size_t at = 0; at + 1 < symbols.size(); ++at) {
        Count({symbols[at], symbols[at + 1]}, 1, i, &places);
      }
    }
    Push(std::move(places));
    while (result_->tokens.size() < vocab_size && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = counts_[best.pair];
      if (best.count != count) {
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (count < kMinPairCount) break;
      Merge(best);
    }
  }

 private:
  // The words in which a pair has become more frequent.
  using Places = absl::flat_hash_map<Pair, absl::flat_hash_set<int32_t>>;

  void Count(Pair pair, int by, int32_t word, Places* places) {
    counts_[pair] += by * words_[word].count;
    if (by > 0) (*places)[pair].insert(word);
  }

  void Push(Places places) {
    for (auto& [pair, words] : places) {
      const int64_t count = counts_[pair];
      if (count > 0) {
        queue_.push({pair, count, {words.begin(), words.end()}});
      }
    }
  }

  void Merge(const Candidate& best) {
    const auto& [left, right] = best.pair;
    std::vector<std::string>& tokens = result_->tokens;
    // Two merges may give the same token.
    const auto [merged, is_new] =
        ids_.emplace(absl::StrCat(tokens[left], tokens[right]), tokens.size());
    if (is_new) tokens.push_back(merged->first);
    const int32_t id = merged->second;
    result_->merges.push_back({left, right, id});
    Places places;
    for (const int32_t word : best.words) {
      MergeInWord(best.pair, id, &words_[word],
                  [&](Pair pair, int by) { Count(pair, by, word, &places); });
    }
    Push(std::move(places));
  }

  std::vector<Word> words_;
  TokenizerJson* const result_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<Pair, int64_t> counts_;
  std::priority_queue<Candidate> queue_;
};

// How often each pre-token occurs in the text.
absl::StatusOr<absl::flat_hash_map<std::string, int64_t>> CountPreTokens(
    const PreTokenizer& pre_tokenizer, const TextStream& stream) {
  absl::flat_hash_map<std::string, int64_t> counts;
  PreTokenizer::State state = pre_tokenizer.MakeState();
  while (std::optional<absl::string_view> text = stream()) {
    while (!text->empty()) {
      const absl::string_view valid = text->substr(0, Utf8PrefixBytes(*text));
      RETURN_IF_ERROR(pre_tokenizer.Split(
          valid, /*continues=*/false, &state,
          [&](absl::string_view pre_token) { ++counts[pre_token]; }));
      text->remove_prefix(std::min(valid.size() + 1, text->size()));
    }
  }
  return counts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TrainByteLevelBpe(
    const ByteLevelBpeOptions& options, const TextStream& text) {
  if (options.vocab_size < kByteVocabularySize) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a byte-level BPE vocabulary has 256 bytes and the end of a document; ",
        options.vocab_size, " is less than ", kByteVocabularySize));
  }
  TokenizerJson json;
  json.pre_tokenizer = {{.pattern = options.pattern}};
  ASSIGN_OR_RETURN(const PreTokenizer pre_tokenizer,
                   PreTokenizer::Create(json.pre_tokenizer));
  json.tokens.emplace_back(kEndOfText);
  json.added_tokens = {{.text = json.tokens[0], .id = 0, .special = true}};
  for (const uint8_t byte : BytesInByteLevelOrder()) {
    json.byte_ids[byte] = static_cast<int32_t>(json.tokens.size());
    json.tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  ASSIGN_OR_RETURN(const auto counts, CountPreTokens(pre_tokenizer, text));
  std::vector<Word> words;
  words.reserve(counts.size());
  for (const auto& [pre_token, count] : counts) {
    words.push_back({.count = count});
    for (const char byte : pre_token) {
      words.back().symbols.push_back(json.byte_ids[static_cast<uint8_t>(byte)]);
    }
  }
  Trainer(std::move(words), &json).Run(options.vocab_size);
  return LoadByteLevelBpe(WriteTokenizerJson(json));
}

}  // namespace tessera
