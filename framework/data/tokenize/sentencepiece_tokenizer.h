#ifndef FRAMEWORK_DATA_TOKENIZE_SENTENCEPIECE_TOKENIZER_H_
#define FRAMEWORK_DATA_TOKENIZE_SENTENCEPIECE_TOKENIZER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

// SentencePiece BPE (Kudo and Richardson, EMNLP 2018), with the settings that
// make it lossless: see tokenizer_bridge.cc.
//
// What SentencePiece cannot carry becomes byte tokens before it sees the text:
// control characters (a newline is one token, a tab is one), U+2581 and U+2585,
// which it uses for the space and the unknown, and bytes that are not UTF-8.

// Yields the text to learn from, stretch by stretch; nullopt ends it.
using TextStream = std::function<std::optional<absl::string_view>()>;

// Learns a vocabulary. `vocab_size` is an upper bound, at least 300: 256 bytes,
// two control pieces and the characters of the text come first, and a short
// text yields fewer. InvalidArgument names the least size where the characters
// have no room, and goes on with `advice`: where the user can change it; it
// also refuses a text of nothing but what becomes byte tokens. Deterministic.
// Takes one to two seconds per megabyte, some ten where no spaces part words.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainBpe(int vocab_size,
                                                    const TextStream& text,
                                                    absl::string_view advice);

// `serialized` as by Tokenizer::Serialize().
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpe(
    absl::string_view serialized);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_SENTENCEPIECE_TOKENIZER_H_
