#ifndef FRAMEWORK_DATA_TOKENIZE_TOKENIZER_H_
#define FRAMEWORK_DATA_TOKENIZE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

enum class TokenizerKind {
  kBpe,  // SentencePiece
  kBytes,
  kByteLevelBpe,  // Hugging Face's tokenizer.json
};

// Bytes and the end of a document: the vocabulary of the byte tokenizer, and
// the first part of a BPE vocabulary.
inline constexpr int kByteVocabularySize = 257;
inline constexpr int kMinBpeVocabularySize = 300;

// "bpe", "bytes" or "byte_level_bpe", as in flags and manifests.
absl::string_view Name(TokenizerKind kind);
absl::StatusOr<TokenizerKind> TokenizerKindFromName(absl::string_view name);

// Converts text to token ids and back. Lossless for every byte string, even if
// it is not valid UTF-8: Decode(Encode(text)) == text, except for what
// byte_level_tokenizer.h lists. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual absl::StatusOr<std::vector<int32_t>> Encode(
      absl::string_view text) const = 0;
  // Encode() for text that continues a document: without the space that some
  // tokenizers add before a text.
  virtual absl::StatusOr<std::vector<int32_t>> EncodeContinued(
      absl::string_view text) const {
    return Encode(text);
  }

  // The concatenated bytes of the tokens; the end-of-document token has none.
  // OutOfRange for an id outside the vocabulary, which a model with a padded
  // head can sample.
  virtual absl::StatusOr<std::string> Decode(
      absl::Span<const int32_t> ids) const = 0;

  virtual TokenizerKind kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;  // ends a document
  // What every text begins with: the tokens that the post_processor of a
  // tokenizer.json puts before it. Encode() does not add them.
  virtual std::vector<int32_t> begin_ids() const { return {}; }

  // The input from which LoadTokenizer() recreates the tokenizer.
  virtual std::string Serialize() const = 0;
};

// Ids 0 to 255 are bytes; 256 ends a document.
std::unique_ptr<Tokenizer> CreateByteTokenizer();

// `source` names the file of `serialized` in errors.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    TokenizerKind kind, absl::string_view serialized, absl::string_view source);

// InvalidArgument if the tokenizer of the file `source` has more token ids than
// model.vocab_size.
absl::Status CheckVocabulary(const Tokenizer& tokenizer,
                             absl::string_view source,
                             int64_t model_vocab_size);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_TOKENIZER_H_
