#ifndef FRAMEWORK_BASE_SHORTEN_H_
#define FRAMEWORK_BASE_SHORTEN_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// How an error message shows a value that a user gave: a flag's, a field's, an
// environment variable's, a path.
inline constexpr size_t kMostBytesOfAValue = 256;

// `text` as one line that is safe on a terminal. Control characters and bytes
// that are not UTF-8 are escaped ("\n", "\x1b"). Of more than `most` bytes only
// the head and the tail are shown, with the number of bytes:
// "aaa ... zzz (1048576 bytes)".
std::string Shorten(absl::string_view text, size_t most = kMostBytesOfAValue);

// A whole message: Shorten() for each of its lines, which may be longer than a
// value, and the first lines only if there are very many.
std::string ShortenMessage(absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_SHORTEN_H_
