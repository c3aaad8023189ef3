#ifndef FRAMEWORK_BASE_SHORTEN_H_
#define FRAMEWORK_BASE_SHORTEN_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// The longest value from a user (flag, field, environment variable, path) that
// an error message shows in full.
inline constexpr size_t kMostBytesOfAValue = 256;

// `text` as one line that is safe to print on a terminal. Escapes control
// characters and bytes that are not UTF-8 ("\n", "\x1b"). A text of more than
// `most` bytes is cut to its head and tail: "aaa ... zzz (1048576 bytes)".
std::string Shorten(absl::string_view text, size_t most = kMostBytesOfAValue);

// Applies Shorten() to each line of `message`, with a higher limit than for a
// value, and keeps only the first lines if there are very many.
std::string ShortenMessage(absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_SHORTEN_H_
