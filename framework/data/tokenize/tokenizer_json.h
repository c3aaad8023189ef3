#ifndef FRAMEWORK_DATA_TOKENIZE_TOKENIZER_JSON_H_
#define FRAMEWORK_DATA_TOKENIZE_TOKENIZER_JSON_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/bpe_merges.h"
#include "framework/data/tokenize/pre_tokenizer.h"

namespace tessera {

// tokenizer.json, the file of Hugging Face's `tokenizers`, of a byte-level BPE:
//
//   field            what is read
//   model            BPE; merges as pairs or as strings; ignore_merges
//   added_tokens     exact ones: no lstrip, rstrip or single_word
//   normalizer       null or NFC
//   pre_tokenizer    ByteLevel, or a Sequence of Splits by a Regex that ends
//                    with ByteLevel
//   decoder          ByteLevel
//   post_processor   null, ByteLevel, TemplateProcessing or a Sequence of them;
//                    only the special tokens that a template puts before a
//                    single text
//   truncation,      null
//   padding
//
// Everything else that would change ids is refused.
struct TokenizerJson {
  struct AddedToken {
    std::string text;
    int32_t id = 0;
    bool special = false;
    bool normalized = false;  // found in the normalized text
  };

  bool nfc = false;
  std::vector<PreTokenizer::Stage> pre_tokenizer;
  std::vector<std::string> tokens;  // bytes by id; none is empty
  std::array<int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;  // a pre-token that is a token is not merged
  std::vector<AddedToken> added_tokens;  // in `tokens`, too
  // That the post_processor puts before a text, at most 16.
  std::vector<int32_t> begin_ids;
};

// Token ids are less than this.
inline constexpr int64_t kMaxTokenIds = 1 << 24;

// InvalidArgument names the first field that is wrong or not supported, what is
// allowed and the value: "model.merges[7] must be ...; is ...".
absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text);

// The file of a tokenizer without a normalizer whose first stage of
// pre-tokenization is its only one.
std::string WriteTokenizerJson(const TokenizerJson& tokenizer);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_TOKENIZER_JSON_H_
