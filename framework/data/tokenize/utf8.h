#ifndef FRAMEWORK_DATA_TOKENIZE_UTF8_H_
#define FRAMEWORK_DATA_TOKENIZE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// The length of the first character of `text`, 1 to 4 bytes; 0 for an empty
// text, a stray or missing continuation byte, an overlong form, a surrogate, or
// a number above U+10FFFF (RFC 3629, section 4).
int Utf8CharacterBytes(absl::string_view text);

// The number of bytes before the first invalid one; all of a valid text.
size_t Utf8PrefixBytes(absl::string_view text);

bool IsUtf8(absl::string_view text);

// The length, 0 to 3 bytes, of the end of `text` that begins a character whose
// other bytes are missing.
size_t Utf8UnfinishedBytes(absl::string_view text);

// "byte 3: 0xe9 is not UTF-8", the first such byte; empty for a valid text.
std::string Utf8Fault(absl::string_view text);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_UTF8_H_
