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

// SentencePiece BPE (Kudo and Richardson, EMNLP 2018), with settings that make
// it lossless: see tokenizer_bridge.cc.
//
// Everything that SentencePiece cannot reproduce is encoded as byte tokens
// before it sees the text: control characters (a newline or a tab is one
// token), U+2581 and U+2585, which it uses for the space and the unknown, and
// bytes that are not UTF-8.

// Returns the text to learn from, piece by piece; nullopt ends it.
using TextStream = std::function<std::optional<absl::string_view>()>;

// Learns a vocabulary. Deterministic. Takes one to two seconds per megabyte,
// about ten if no spaces separate words.
//
// `vocab_size` is an upper bound, at least 300: it includes 256 bytes, two
// control pieces and the characters of the text; short texts give fewer pieces.
// InvalidArgument if the characters do not fit: names the minimum and appends
// `advice` on where to change it. Also InvalidArgument if all of the text would
// become byte tokens.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainBpe(int vocab_size,
                                                    const TextStream& text,
                                                    absl::string_view advice);

// `serialized` is the result of Tokenizer::Serialize().
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpe(
    absl::string_view serialized);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_SENTENCEPIECE_TOKENIZER_H_
