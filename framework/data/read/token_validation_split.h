#ifndef FRAMEWORK_DATA_READ_TOKEN_VALIDATION_SPLIT_H_
#define FRAMEWORK_DATA_READ_TOKEN_VALIDATION_SPLIT_H_

#include <cstdint>
#include <memory>

#include "framework/data/read/token_sequence.h"

namespace tessera {

// The validation split of tokens: the end of the sequence, which may begin
// inside a document. For text see prepare/document_validation_split.h.
struct TokenSplit {
  std::shared_ptr<const TokenSequence> train;
  std::shared_ptr<const TokenSequence> validation;  // null if none is held out
};

// An input and its target.
inline constexpr int64_t kMinSplitTokens = 2;

// Trains on the first `train_tokens` tokens of `whole` and holds out the rest.
TokenSplit SplitTokensAt(std::shared_ptr<const TokenSequence> whole,
                         int64_t train_tokens);

// Holds out the last round(fraction * tokens) tokens of `whole`; none if this
// is less than kMinSplitTokens.
TokenSplit HoldOutLastTokens(std::shared_ptr<const TokenSequence> whole,
                             double fraction);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_TOKEN_VALIDATION_SPLIT_H_
