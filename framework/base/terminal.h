#ifndef FRAMEWORK_BASE_TERMINAL_H_
#define FRAMEWORK_BASE_TERMINAL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// Whether a line written to `descriptor` can be drawn again and again in place:
// it is a terminal, TERM names another kind than "dumb", and CI is not set.
// Continuous integration sets CI and keeps what is written to its terminals.
bool CanRedraw(int descriptor);

// `text` folded at spaces into lines of at most `width` columns, without a
// newline at the end. Lines after the first begin with `indent` spaces, which
// count. A word that is wider still, as a path may be, is not broken.
std::string Fold(absl::string_view text, int width, int indent);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TERMINAL_H_
