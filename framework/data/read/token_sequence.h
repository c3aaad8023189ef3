#ifndef FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_
#define FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "framework/data/read/token_file.h"

namespace tessera {

// A finite sequence of token ids with random access. Immutable, thread-safe.
class TokenSequence {
 public:
  virtual ~TokenSequence() = default;
  virtual int64_t tokens() const = 0;
  // Copies tokens [begin, begin + out.size()), which must lie inside. An error
  // names the file that cannot be read.
  virtual absl::Status Read(int64_t begin, absl::Span<int64_t> out) const = 0;
};

// The files' tokens behind one another.
std::unique_ptr<TokenSequence> CreateFileSequence(std::vector<TokenFile> files);

// Tokens [begin, end) of `whole`.
std::unique_ptr<TokenSequence> CreateSubsequence(
    std::shared_ptr<const TokenSequence> whole, int64_t begin, int64_t end);

struct SyntheticOptions {
  int64_t tokens = 0;
  int64_t vocab_size = 0;
  int64_t successors = 0;  // in [1, vocab_size]
  uint64_t seed = 0;
};

// A Markov chain of order 1. Behind token t comes (p(t) + j) mod vocab_size
// with j uniform in [0, successors), where p is a permutation of the vocabulary
// drawn by the seed. The transition matrix is doubly stochastic, so every token
// is equally frequent: the unigram entropy is ln(vocab_size), the entropy rate
// ln(successors). The chain starts anew, uniformly, every 4096 tokens, which
// bounds the cost of reading at any place.
std::unique_ptr<TokenSequence> CreateSyntheticSequence(
    const SyntheticOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_
