#include "framework/base/terminal.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

absl::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool CanRedraw(int descriptor) {
  const absl::string_view terminal = Variable("TERM"), ci = Variable("CI");
  return isatty(descriptor) == 1 && !terminal.empty() && terminal != "dumb" &&
         (ci.empty() || ci == "false" || ci == "0");
}

std::string Fold(absl::string_view text, int width, int indent) {
  std::string folded;
  int column = 0;
  bool first = true;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const int columns = static_cast<int>(word.size());
    // Breaking before a word that starts at the indent gains nothing.
    if (!first && column > indent && column + 1 + columns > width) {
      folded.append(1, '\n').append(indent, ' ');
      column = indent;
    } else if (!first) {
      folded += ' ';
      ++column;
    }
    folded.append(word.data(), word.size());
    column += columns;
    first = false;
  }
  return folded;
}

std::string LabelledLine(absl::string_view label, absl::string_view value,
                         int indent) {
  return Fold(absl::StrFormat("%-12s%s", label, value), 80, indent) + "\n";
}

}  // namespace tessera
