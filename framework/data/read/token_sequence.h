#ifndef FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_
#define FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "framework/data/read/document_index.h"
#include "framework/data/read/token_file.h"

namespace tessera {

// A finite sequence of token ids with random access. Immutable, thread-safe.
class TokenSequence {
 public:
  virtual ~TokenSequence() = default;
  virtual int64_t tokens() const = 0;
  // Copies tokens [begin, begin + out.size()), which must be in range. An error
  // names the file that cannot be read.
  virtual absl::Status Read(int64_t begin, absl::Span<int64_t> out) const = 0;
  // Where documents begin, as far as that is known.
  virtual DocumentIndex documents() const { return DocumentIndex(); }
};

// The files' tokens, concatenated. Each file begins a document.
std::unique_ptr<TokenSequence> CreateFileSequence(std::vector<TokenFile> files);

// Tokens [begin, end) of `whole`.
std::unique_ptr<TokenSequence> CreateSubsequence(
    std::shared_ptr<const TokenSequence> whole, int64_t begin, int64_t end);

struct SyntheticOptions {
  int64_t tokens = 0;
  int64_t vocab_size = 0;
  int64_t successors = 0;  // in [1, vocab_size]
  uint64_t seed = 0;
  // The mean length of a document, or 0 for a single document.
  int64_t document_tokens = 0;
};

// A first-order Markov chain. The successor of token t is (p(t) + j) mod
// vocab_size, where j is uniform in [0, successors) and p is a permutation of
// the vocabulary drawn from the seed. The transition matrix is doubly
// stochastic, so all tokens are equally frequent: the unigram entropy is
// ln(vocab_size), the entropy rate ln(successors). The chain restarts with a
// uniform token every 4096 tokens, which bounds the cost of random access, and
// at the start of each document. The lengths of documents are uniform in [1,
// 2 * document_tokens - 1].
std::unique_ptr<TokenSequence> CreateSyntheticSequence(
    const SyntheticOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_TOKEN_SEQUENCE_H_
