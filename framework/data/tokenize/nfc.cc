#include "framework/data/tokenize/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <cstdlib>

namespace tessera {
namespace {

constexpr auto kForm =
    static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr int32_t kCodePoints = 0x110000;
constexpr int32_t kFirstChangeable = 0x300;
// The first byte of U+0300 and of every later character is at least this.
constexpr uint8_t kFirstChangeableByte = 0xcc;

using CodePoints = std::bitset<kCodePoints>;

// The characters that normalization may change, reorder or combine with the
// character before them. It never changes text without any, and what is before
// or after a stretch of them has no influence on it, except for the character
// directly before.
const CodePoints& Changeable() {
  static const CodePoints* const changeable = [] {
    auto* marked = new CodePoints;
    for (int32_t c = kFirstChangeable; c < kCodePoints; ++c) {
      if (0xd800 <= c && c < 0xe000) continue;  // surrogates
      if (utf8proc_get_property(c)->combining_class != 0) marked->set(c);
      constexpr int kMost = 8;
      int32_t parts[kMost];
      const auto count = utf8proc_decompose_char(c, parts, kMost, kForm,
                                                 /*boundclass=*/nullptr);
      if (count < 1 || count > kMost || (count == 1 && parts[0] == c)) continue;
      if (count > 1) marked->set(parts[count - 1]);
      if (utf8proc_normalize_utf32(parts, count, kForm) != 1 || parts[0] != c) {
        marked->set(c);
      }
    }
    return marked;
  }();
  return *changeable;
}

// The number of bytes of the character at `text`, which is valid.
size_t CharacterBytes(const char* text) {
  const auto first = static_cast<uint8_t>(*text);
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

bool IsChangeable(const char* text) {
  if (static_cast<uint8_t>(*text) < kFirstChangeableByte) return false;
  int32_t character;
  utf8proc_iterate(reinterpret_cast<const uint8_t*>(text),
                   static_cast<utf8proc_ssize_t>(CharacterBytes(text)),
                   &character);
  return Changeable().test(character);
}

void AppendNormalized(absl::string_view text, std::string* result) {
  utf8proc_uint8_t* normalized = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()),
                                  &normalized, kForm);
  if (bytes >= 0) {
    result->append(reinterpret_cast<const char*>(normalized), bytes);
  }
  free(normalized);
}

}  // namespace

absl::string_view ToNfc(absl::string_view text, std::string* buffer) {
  const char* const end = text.data() + text.size();
  const char* unchanged = text.data();  // from here on nothing was appended
  const char* before = text.data();     // the last character before `at`
  buffer->clear();
  for (const char* at = text.data(); at < end;) {
    if (!IsChangeable(at)) {
      before = at;
      at += CharacterBytes(at);
      continue;
    }
    while (at < end && IsChangeable(at)) at += CharacterBytes(at);
    buffer->append(unchanged, before - unchanged);
    AppendNormalized({before, static_cast<size_t>(at - before)}, buffer);
    unchanged = before = at;
  }
  if (unchanged == text.data()) return text;
  buffer->append(unchanged, end - unchanged);
  return *buffer;
}

}  // namespace tessera
