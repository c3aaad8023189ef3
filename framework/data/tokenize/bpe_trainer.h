#ifndef FRAMEWORK_DATA_TOKENIZE_BPE_TRAINER_H_
#define FRAMEWORK_DATA_TOKENIZE_BPE_TRAINER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/sentencepiece_tokenizer.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

struct ByteLevelBpeOptions {
  int vocab_size = 0;   // at least 257
  std::string pattern;  // by which text is split: see split_pattern.h
};

// Learns a byte-level BPE: <|endoftext|> has the id 0, then come the bytes in
// GPT-2's order, then the merges. Merges the most frequent pair of tokens; of
// equally frequent ones that with the smallest ids. Pairs that occur once are
// not merged, so short texts give fewer tokens. Deterministic.
//
// The same vocabulary and merges as Python's `tokenizers`, BpeTrainer(
// vocab_size, min_frequency=2, special_tokens=["<|endoftext|>"],
// initial_alphabet=ByteLevel.alphabet()). Skips bytes that are not UTF-8.
absl::StatusOr<std::unique_ptr<Tokenizer>> TrainByteLevelBpe(
    const ByteLevelBpeOptions& options, const TextStream& text);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_BPE_TRAINER_H_
