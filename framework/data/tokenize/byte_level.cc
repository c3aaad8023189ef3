#include "framework/data/tokenize/byte_level.h"

namespace tessera {
namespace {

bool IsPrintable(int byte) {
  return (0x21 <= byte && byte <= 0x7e) || (0xa1 <= byte && byte <= 0xac) ||
         0xae <= byte;
}

// The code point of each byte.
const std::array<uint16_t, 256>& Characters() {
  static const auto characters = [] {
    std::array<uint16_t, 256> all;
    uint16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      all[byte] = IsPrintable(byte) ? byte : next++;
    }
    return all;
  }();
  return characters;
}

// The byte of each code point; -1: none.
const std::array<int16_t, 0x144>& BytesOfCharacters() {
  static const auto bytes = [] {
    std::array<int16_t, 0x144> all;
    all.fill(-1);
    for (int byte = 0; byte < 256; ++byte) all[Characters()[byte]] = byte;
    return all;
  }();
  return bytes;
}

}  // namespace

std::array<uint8_t, 256> BytesInByteLevelOrder() {
  std::array<uint8_t, 256> order;
  size_t next = 0;
  for (const int16_t byte : BytesOfCharacters()) {
    if (byte >= 0) order[next++] = static_cast<uint8_t>(byte);
  }
  return order;
}

std::string ToByteLevel(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) {
    const uint16_t character = Characters()[static_cast<uint8_t>(byte)];
    if (character < 0x80) {
      text.push_back(static_cast<char>(character));
    } else {
      text.push_back(static_cast<char>(0xc0 | character >> 6));
      text.push_back(static_cast<char>(0x80 | (character & 0x3f)));
    }
  }
  return text;
}

std::optional<std::string> FromByteLevel(absl::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    size_t character = static_cast<uint8_t>(text[i]);
    if ((character & 0xe0) == 0xc0 && i + 1 < text.size()) {
      character = (character & 0x1f) << 6 | (text[++i] & 0x3f);
    } else if (character >= 0x80) {
      return std::nullopt;
    }
    if (character >= BytesOfCharacters().size()) return std::nullopt;
    const int16_t byte = BytesOfCharacters()[character];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace tessera
