#include "framework/base/shorten.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// Longer than any line that this program writes without a user's value.
constexpr size_t kMostBytesOfALine = 2048;
constexpr size_t kMostLines = 100;

bool IsContinuation(char byte) {
  return (static_cast<uint8_t>(byte) & 0xC0) == 0x80;
}

// The length of the first character of `text`; 0 if it is not valid UTF-8 or is
// a control character.
size_t PrintableLength(absl::string_view text) {
  const uint8_t first = text[0];
  if (first < 0x20 || first == 0x7F) return 0;
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  // U+0080 to U+009F: some terminals take these as the start of a command.
  const bool is_control = first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0;
  return is_control ? 0 : length;
}

std::string Escape(absl::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    if (length > 0) {
      absl::StrAppend(&escaped, text.substr(0, length));
    } else if (text[0] == '\n') {
      escaped += "\\n";
    } else if (text[0] == '\t') {
      escaped += "\\t";
    } else {
      absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<uint8_t>(text[0]));
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return escaped;
}

}  // namespace

std::string Shorten(absl::string_view text, size_t most) {
  if (text.size() <= most) return Escape(text);
  // Cut between characters.
  size_t head = most / 2, tail = text.size() - most / 4;
  while (head > 0 && IsContinuation(text[head])) --head;
  while (tail < text.size() && IsContinuation(text[tail])) ++tail;
  return absl::StrCat(Escape(text.substr(0, head)), " ... ",
                      Escape(text.substr(tail)), " (", text.size(), " bytes)");
}

std::string ShortenMessage(absl::string_view message) {
  absl::ConsumeSuffix(&message, "\n");
  std::vector<std::string> lines;
  size_t left_out = 0;
  for (absl::string_view line : absl::StrSplit(message, '\n')) {
    if (lines.size() == kMostLines) {
      ++left_out;
    } else {
      lines.push_back(Shorten(line, kMostBytesOfALine));
    }
  }
  if (left_out > 0) lines.push_back(absl::StrCat("... ", left_out, " more"));
  return absl::StrJoin(lines, "\n");
}

}  // namespace tessera
