#ifndef FRAMEWORK_BASE_TERMINAL_H_
#define FRAMEWORK_BASE_TERMINAL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// Whether a line on `descriptor` can be redrawn in place: it is a terminal,
// TERM is not "dumb", and CI is not set. Continuous integration sets CI and
// keeps everything that is written to its terminals.
bool CanRedraw(int descriptor);

// Wraps `text` at spaces into lines of at most `width` columns, without a
// trailing newline. Lines after the first are indented by `indent` spaces,
// which count. A longer word, such as a path, is not broken.
std::string Fold(absl::string_view text, int width, int indent);

// "label       value", folded to 80 columns, with a newline.
std::string LabelledLine(absl::string_view label, absl::string_view value,
                         int indent = 12);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_TERMINAL_H_
