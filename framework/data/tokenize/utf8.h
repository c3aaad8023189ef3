#ifndef FRAMEWORK_DATA_TOKENIZE_UTF8_H_
#define FRAMEWORK_DATA_TOKENIZE_UTF8_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tessera {

// The bytes of the character that `text` begins with, 1 to 4; 0 where it begins
// with none: an empty text, a stray or missing continuation byte, an overlong
// form, a surrogate, or a number above U+10FFFF (RFC 3629, section 4).
int Utf8CharacterBytes(absl::string_view text);

// The bytes before the first that is not UTF-8; all of a valid text.
size_t Utf8PrefixBytes(absl::string_view text);

bool IsUtf8(absl::string_view text);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_UTF8_H_
