#include "framework/data/read/token_validation_split.h"

#include <cmath>
#include <utility>

namespace tessera {

TokenSplit SplitTokensAt(std::shared_ptr<const TokenSequence> whole,
                         int64_t train_tokens) {
  TokenSplit split = {.train = CreateSubsequence(whole, 0, train_tokens)};
  if (train_tokens < whole->tokens()) {
    split.validation = CreateSubsequence(whole, train_tokens, whole->tokens());
  }
  return split;
}

TokenSplit HoldOutLastTokens(std::shared_ptr<const TokenSequence> whole,
                             double fraction) {
  const int64_t tokens = whole->tokens();
  int64_t held_out = std::llround(fraction * static_cast<double>(tokens));
  if (held_out < kMinSplitTokens) held_out = 0;
  return SplitTokensAt(std::move(whole), tokens - held_out);
}

}  // namespace tessera
