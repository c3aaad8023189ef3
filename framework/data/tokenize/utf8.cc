#include "framework/data/tokenize/utf8.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"

namespace tessera {
namespace {

bool InRange(uint8_t byte, uint8_t low, uint8_t high) {
  return low <= byte && byte <= high;
}

// The length that a first byte announces; 0 if no character starts with it.
int AnnouncedBytes(uint8_t first) {
  if (first < 0x80) return 1;
  if (InRange(first, 0xc2, 0xdf)) return 2;
  if (InRange(first, 0xe0, 0xef)) return 3;
  if (InRange(first, 0xf0, 0xf4)) return 4;
  return 0;
}

// Whether `second` may follow `first`. This is where overlong forms, surrogates
// and numbers above U+10FFFF are detected.
bool ValidSecond(uint8_t first, uint8_t second) {
  switch (first) {
    case 0xe0:
      return InRange(second, 0xa0, 0xbf);
    case 0xed:
      return InRange(second, 0x80, 0x9f);
    case 0xf0:
      return InRange(second, 0x90, 0xbf);
    case 0xf4:
      return InRange(second, 0x80, 0x8f);
    default:
      return InRange(second, 0x80, 0xbf);
  }
}

}  // namespace

int Utf8CharacterBytes(absl::string_view text) {
  if (text.empty()) return 0;
  const int bytes = AnnouncedBytes(text[0]);
  if (bytes > static_cast<int>(text.size())) return 0;
  if (bytes >= 2 && !ValidSecond(text[0], text[1])) return 0;
  for (int i = 2; i < bytes; ++i) {
    if (!InRange(text[i], 0x80, 0xbf)) return 0;
  }
  return bytes;
}

size_t Utf8PrefixBytes(absl::string_view text) {
  absl::string_view rest = text;
  while (!rest.empty()) {
    // Fast path for ASCII, eight characters at a time.
    uint64_t word;
    if (rest.size() >= sizeof(word)) {
      memcpy(&word, rest.data(), sizeof(word));
      if ((word & 0x8080808080808080) == 0) {
        rest.remove_prefix(sizeof(word));
        continue;
      }
    }
    const int bytes = Utf8CharacterBytes(rest);
    if (bytes == 0) break;
    rest.remove_prefix(bytes);
  }
  return text.size() - rest.size();
}

bool IsUtf8(absl::string_view text) {
  return Utf8PrefixBytes(text) == text.size();
}

size_t Utf8UnfinishedBytes(absl::string_view text) {
  for (size_t bytes = 1; bytes <= 3 && bytes <= text.size(); ++bytes) {
    const absl::string_view end = text.substr(text.size() - bytes);
    const size_t announced = AnnouncedBytes(end[0]);
    if (announced == 0) continue;  // not the first byte of a character
    const bool begins = announced > bytes &&
                        (bytes < 2 || ValidSecond(end[0], end[1])) &&
                        (bytes < 3 || InRange(end[2], 0x80, 0xbf));
    return begins ? bytes : 0;
  }
  return 0;
}

std::string Utf8Fault(absl::string_view text) {
  const size_t valid = Utf8PrefixBytes(text);
  if (valid == text.size()) return "";
  return absl::StrFormat("byte %d: 0x%02x is not UTF-8", valid,
                         static_cast<uint8_t>(text[valid]));
}

}  // namespace tessera
