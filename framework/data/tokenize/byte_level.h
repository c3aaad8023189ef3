#ifndef FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_H_
#define FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// GPT-2's printable form of bytes, in which a tokenizer.json writes its tokens:
// printable Latin-1 characters stand for themselves, and the other 68 bytes, in
// their order, for U+0100 to U+0143. A space is "Ġ" (U+0120).

// All bytes in the order of their characters, as in GPT-2's vocabulary.
std::array<uint8_t, 256> BytesInByteLevelOrder();

// The characters of `bytes`, in UTF-8.
std::string ToByteLevel(absl::string_view bytes);

// The bytes of `text`; nullopt if one of its characters stands for no byte.
std::optional<std::string> FromByteLevel(absl::string_view text);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_BYTE_LEVEL_H_
