#include "framework/data/tokenize/byte_level_tokenizer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "framework/base/status_macros.h"
#include "framework/data/tokenize/added_tokens.h"
#include "framework/data/tokenize/bpe_merges.h"
#include "framework/data/tokenize/nfc.h"
#include "framework/data/tokenize/pre_tokenizer.h"
#include "framework/data/tokenize/tokenizer_json.h"
#include "framework/data/tokenize/utf8.h"
#include "xxhash.h"

namespace tessera {
namespace {

// The ids of pre-tokens that were encoded lately. A line of the cache is a
// cache line of the processor and holds one short pre-token, the latest with
// its hash.
class PreTokenCache {
 public:
  struct alignas(64) Line {
    static constexpr size_t kMostBytes = 30;
    static constexpr size_t kMostIds = 8;

    uint8_t bytes = 0;
    uint8_t count = 0;
    char text[kMostBytes];
    int32_t ids[kMostIds];

    bool Holds(absl::string_view pre_token) const {
      return bytes == pre_token.size() &&
             memcmp(text, pre_token.data(), bytes) == 0;
    }
    void Fill(absl::string_view pre_token, absl::Span<const int32_t> new_ids) {
      bytes = static_cast<uint8_t>(pre_token.size());
      count = static_cast<uint8_t>(new_ids.size());
      memcpy(text, pre_token.data(), bytes);
      std::copy(new_ids.begin(), new_ids.end(), ids);
    }
  };

  PreTokenCache() : lines_(kLines) {}

  // The line for a pre-token of at most kMostBytes.
  Line& LineFor(absl::string_view pre_token) {
    return lines_[XXH3_64bits(pre_token.data(), pre_token.size()) % kLines];
  }

 private:
  static constexpr size_t kLines = 1 << 16;  // 4 MiB

  std::vector<Line> lines_;
};

// What a thread needs to encode.
struct Scratch {
  explicit Scratch(PreTokenizer::State state)
      : pre_tokenizer(std::move(state)) {}

  PreTokenCache cache;
  PreTokenizer::State pre_tokenizer;
  BpeMerges::State merges;
  std::string normalized;
};

class ByteLevelTokenizer : public Tokenizer {
 public:
  ByteLevelTokenizer(TokenizerJson json, PreTokenizer pre_tokenizer,
                     int32_t eos_id, absl::string_view serialized)
      : json_(std::move(json)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        eos_id_(eos_id),
        serialized_(serialized),
        ids_(IdsOfTokens(json_)),
        merges_(json_.byte_ids, json_.merges),
        added_tokens_(Added(json_, /*normalized=*/false)),
        normalized_tokens_(Added(json_, /*normalized=*/true)) {}

  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text) const override {
    return Encode(text, /*continues=*/false);
  }
  absl::StatusOr<std::vector<int32_t>> EncodeContinued(
      absl::string_view text) const override {
    return Encode(text, /*continues=*/true);
  }
  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override;

  TokenizerKind kind() const override { return TokenizerKind::kByteLevelBpe; }
  int64_t vocab_size() const override {
    return static_cast<int64_t>(json_.tokens.size());
  }
  int32_t eos_id() const override { return eos_id_; }
  std::vector<int32_t> begin_ids() const override { return json_.begin_ids; }
  std::string Serialize() const override { return serialized_; }

 private:
  using Ids = absl::flat_hash_map<absl::string_view, int32_t>;

  static Ids IdsOfTokens(const TokenizerJson& json) {
    Ids ids;
    ids.reserve(json.tokens.size());
    // If an added token has the text of another, that of the model counts.
    for (size_t id = 0; id < json.tokens.size(); ++id) {
      ids.emplace(json.tokens[id], id);
    }
    return ids;
  }
  static AddedTokenFinder Added(const TokenizerJson& json, bool normalized) {
    std::vector<std::pair<std::string, int32_t>> tokens;
    for (const TokenizerJson::AddedToken& token : json.added_tokens) {
      if (token.normalized == normalized)
        tokens.push_back({token.text, token.id});
    }
    return AddedTokenFinder(std::move(tokens));
  }

  std::unique_ptr<Scratch> TakeScratch() const;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool continues) const;
  absl::Status EncodeUtf8(absl::string_view text, bool continues,
                          Scratch* scratch, std::vector<int32_t>* ids) const;
  void EncodePreToken(absl::string_view pre_token, Scratch* scratch,
                      std::vector<int32_t>* ids) const;

  const TokenizerJson json_;
  const PreTokenizer pre_tokenizer_;
  const int32_t eos_id_;
  const std::string serialized_;
  const Ids ids_;
  const BpeMerges merges_;
  const AddedTokenFinder added_tokens_;
  const AddedTokenFinder normalized_tokens_;

  mutable absl::Mutex mutex_;
  // There are as many as threads that have encoded at the same time.
  mutable std::vector<std::unique_ptr<Scratch>> scratches_
      ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<Scratch> ByteLevelTokenizer::TakeScratch() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!scratches_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(scratches_.back());
      scratches_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>(pre_tokenizer_.MakeState());
}

void ByteLevelTokenizer::EncodePreToken(absl::string_view pre_token,
                                        Scratch* scratch,
                                        std::vector<int32_t>* ids) const {
  using Line = PreTokenCache::Line;
  Line* line = nullptr;
  if (pre_token.size() <= Line::kMostBytes) {
    line = &scratch->cache.LineFor(pre_token);
    if (line->Holds(pre_token)) {
      ids->insert(ids->end(), line->ids, line->ids + line->count);
      return;
    }
  }
  const size_t begin = ids->size();
  const auto token = json_.ignore_merges ? ids_.find(pre_token) : ids_.end();
  if (token != ids_.end()) {
    ids->push_back(token->second);
  } else {
    merges_.Encode(pre_token, &scratch->merges, ids);
  }
  if (line == nullptr || ids->size() - begin > Line::kMostIds) return;
  line->Fill(pre_token, absl::MakeConstSpan(*ids).subspan(begin));
}

absl::Status ByteLevelTokenizer::EncodeUtf8(absl::string_view text,
                                            bool continues, Scratch* scratch,
                                            std::vector<int32_t>* ids) const {
  const auto encode = [&](absl::string_view part, std::optional<int32_t> id) {
    const bool part_continues = std::exchange(continues, false);
    if (id.has_value()) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
    return pre_tokenizer_.Split(part, part_continues, &scratch->pre_tokenizer,
                                [&](absl::string_view pre_token) {
                                  EncodePreToken(pre_token, scratch, ids);
                                });
  };
  return added_tokens_.Split(
      text, [&](absl::string_view part, std::optional<int32_t> id) {
        if (id.has_value()) return encode(part, id);
        if (json_.nfc) part = ToNfc(part, &scratch->normalized);
        return normalized_tokens_.Split(part, encode);
      });
}

absl::StatusOr<std::vector<int32_t>> ByteLevelTokenizer::Encode(
    absl::string_view text, bool continues) const {
  std::unique_ptr<Scratch> scratch = TakeScratch();
  const auto give_back = absl::MakeCleanup([&] {
    const absl::MutexLock lock(&mutex_);
    scratches_.push_back(std::move(scratch));
  });
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  while (!text.empty()) {
    const absl::string_view valid = text.substr(0, Utf8PrefixBytes(text));
    RETURN_IF_ERROR(EncodeUtf8(valid, std::exchange(continues, false),
                               scratch.get(), &ids));
    text.remove_prefix(valid.size());
    size_t invalid = 0;
    while (invalid < text.size() &&
           Utf8CharacterBytes(text.substr(invalid)) == 0) {
      ++invalid;
    }
    merges_.Encode(text.substr(0, invalid), &scratch->merges, &ids);
    text.remove_prefix(invalid);
  }
  return ids;
}

absl::StatusOr<std::string> ByteLevelTokenizer::Decode(
    absl::Span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      return absl::OutOfRangeError(absl::StrCat(
          "token ", id, " is outside the tokenizer's vocabulary of ",
          vocab_size()));
    }
    if (id != eos_id_) text += json_.tokens[id];
  }
  return text;
}

absl::StatusOr<int32_t> FindEos(const TokenizerJson& json) {
  for (const absl::string_view name :
       {"<|endoftext|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>"}) {
    for (const TokenizerJson::AddedToken& token : json.added_tokens) {
      if (token.text == name) return token.id;
    }
  }
  const auto is_special = [](const TokenizerJson::AddedToken& token) {
    return token.special;
  };
  const auto& added = json.added_tokens;
  if (std::count_if(added.begin(), added.end(), is_special) == 1) {
    return std::find_if(added.begin(), added.end(), is_special)->id;
  }
  return absl::InvalidArgumentError(
      "added_tokens does not say which token ends a document; it must have "
      "<|endoftext|>, <|end_of_text|>, </s>, <｜end▁of▁sentence｜> or a single "
      "special token");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadByteLevelBpe(
    absl::string_view tokenizer_json) {
  ASSIGN_OR_RETURN(TokenizerJson json, ParseTokenizerJson(tokenizer_json));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                   PreTokenizer::Create(json.pre_tokenizer));
  ASSIGN_OR_RETURN(const int32_t eos_id, FindEos(json));
  return std::make_unique<ByteLevelTokenizer>(
      std::move(json), std::move(pre_tokenizer), eos_id, tokenizer_json);
}

}  // namespace tessera
