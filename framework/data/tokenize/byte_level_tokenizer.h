#ifndef FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_TOKENIZER_H_
#define FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

// The tokenizer of a tokenizer.json: see tokenizer_json.h. Its ids are those of
// Python's `tokenizers`, encode(text, add_special_tokens=False), except:
//
//   - Each stretch of bytes that are not UTF-8 is a pre-token, so that nothing
//     is lost. Python replaces them by U+FFFD.
//   - PCRE2 knows Unicode 14; a character that is newer is not a letter.
//
// Decode() gives special tokens their text, except for the end of a document.
// If the file has a normalizer, Decode(Encode(text)) is the normalized text.
//
// A document ends with the first of these that is an added token:
// <|endoftext|>, <|end_of_text|>, </s>, <｜end▁of▁sentence｜>, else the only
// special token. InvalidArgument if there is none.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadByteLevelBpe(
    absl::string_view tokenizer_json);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_TOKENIZER_H_
