#include "framework/data/tokenize/tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
  return kind == TokenizerKind::kBpe ? "bpe" : "bytes";
}

absl::StatusOr<TokenizerKind> TokenizerKindFromName(absl::string_view name) {
  if (name == "bpe") return TokenizerKind::kBpe;
  if (name == "bytes") return TokenizerKind::kBytes;
  return absl::InvalidArgumentError(
      absl::StrCat("no tokenizer '", name, "'; use bpe or bytes"));
}

std::unique_ptr<Tokenizer> CreateByteTokenizer() {
  return std::make_unique<ByteTokenizer>();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    TokenizerKind kind, absl::string_view serialized) {
  if (kind == TokenizerKind::kBpe) return LoadBpe(serialized);
  return CreateByteTokenizer();
}

}  // namespace tessera
