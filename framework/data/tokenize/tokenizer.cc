#include "framework/data/tokenize/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "framework/data/tokenize/byte_level_tokenizer.h"
#include "framework/data/tokenize/sentencepiece_tokenizer.h"

namespace tessera {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id < 0 || id > kEos) {
        return absl::OutOfRangeError(
            absl::StrCat("token ", id, " is neither a byte nor ", kEos,
                         ", the end of a document"));
      }
      if (id != kEos) text.push_back(static_cast<char>(id));
    }
    return text;
  }

  TokenizerKind kind() const override { return TokenizerKind::kBytes; }
  int64_t vocab_size() const override { return kByteVocabularySize; }
  int32_t eos_id() const override { return kEos; }
  std::string Serialize() const override { return "bytes"; }

 private:
  static constexpr int32_t kEos = kByteVocabularySize - 1;
};

}  // namespace

absl::string_view Name(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::kBpe:
      return "bpe";
    case TokenizerKind::kBytes:
      return "bytes";
    case TokenizerKind::kByteLevelBpe:
      return "byte_level_bpe";
  }
  return "";
}

absl::StatusOr<TokenizerKind> TokenizerKindFromName(absl::string_view name) {
  for (const auto kind : {TokenizerKind::kBpe, TokenizerKind::kBytes,
                          TokenizerKind::kByteLevelBpe}) {
    if (name == Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no tokenizer '", name, "'; use bpe, bytes or byte_level_bpe"));
}

std::unique_ptr<Tokenizer> CreateByteTokenizer() {
  return std::make_unique<ByteTokenizer>();
}

namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(TokenizerKind kind,
                                                absl::string_view serialized) {
  switch (kind) {
    case TokenizerKind::kBpe:
      return LoadBpe(serialized);
    case TokenizerKind::kBytes:
      return CreateByteTokenizer();
    case TokenizerKind::kByteLevelBpe:
      return LoadByteLevelBpe(serialized);
  }
  return absl::InternalError("no such tokenizer");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    TokenizerKind kind, absl::string_view serialized,
    absl::string_view source) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Load(kind, serialized);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(source, ": ", tokenizer.status().message()));
}

absl::Status CheckVocabulary(const Tokenizer& tokenizer,
                             absl::string_view source,
                             int64_t model_vocab_size) {
  if (tokenizer.vocab_size() <= model_vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      source, ": the tokenizer has token ids up to ",
      tokenizer.vocab_size() - 1, ", but model.vocab_size is ",
      model_vocab_size, "; raise model.vocab_size to at least ",
      tokenizer.vocab_size(), ", or use the tokenizer of the model"));
}

}  // namespace tessera
