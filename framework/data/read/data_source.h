#ifndef FRAMEWORK_DATA_READ_DATA_SOURCE_H_
#define FRAMEWORK_DATA_READ_DATA_SOURCE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "framework/data/read/document_index.h"
#include "framework/data/read/sampler.h"
#include "framework/data/read/token_sequence.h"

namespace tessera {

// A rank's part of a global batch. A global batch is the samples [first_sample,
// first_sample + global_batch); rank r of w owns the r-th of w equal contiguous
// shares. So the samples of a step, and their order, do not depend on the world
// size.
struct BatchRequest {
  int64_t first_sample = 0;  // samples consumed before this step
  int64_t global_batch = 1;  // samples; a multiple of world_size
  int rank = 0;
  int world_size = 1;
  // Samples from here on are padding without valid targets. An evaluation sets
  // it to its number of windows, so that its last batch keeps its shape.
  int64_t end_sample = std::numeric_limits<int64_t>::max();

  // Number of samples of the rank.
  int64_t share() const { return global_batch / world_size; }

  bool operator==(const BatchRequest&) const = default;
};

// Batches of one split. Immutable and thread-safe; Fill() is a pure function.
//
// With separate_documents, a row is divided into segments. A segment begins at
// the start of the row, of each document and of the padding. A document that
// continues in another row is a segment of each of them.
class DataSource {
 public:
  struct Options {
    int64_t context_length = 0;
    int64_t vocab_size = 0;
    bool shuffle = true;
    uint64_t seed = 0;
    bool separate_documents = false;
    // With separate_documents: if false, the targets that begin a document are
    // kIgnoredTarget.
    bool train_across_documents = false;
    std::string description;  // "train split of corpus/ (18,204,113 tokens)"
  };
  // Rejects a sequence of fewer than two tokens, which has no target.
  static absl::StatusOr<std::unique_ptr<DataSource>> Create(
      std::shared_ptr<const TokenSequence> sequence, Options options);

  // Writes the rank's share to `ids`, `targets` and, with separate_documents,
  // `positions`, each (share, context_length). Ids are in [0, vocab_size);
  // padding is 0 in `ids` and kIgnoredTarget in `targets`. Positions are the
  // places of the tokens in their segments.
  //
  // Returns the number of valid targets in the whole global batch, at least 1:
  // the divisor of the mean loss, which every rank knows without communication.
  // InvalidArgument if the request does not divide evenly; otherwise errors of
  // the token files.
  absl::StatusOr<int64_t> Fill(const BatchRequest& request,
                               absl::Span<int64_t> ids,
                               absl::Span<int64_t> targets,
                               absl::Span<int64_t> positions = {}) const;

  // Mean number of (query, key) pairs per row, padding included, if each token
  // sees, of the tokens of its segment, or of its row, up to itself, the
  // `latest`. Goes through all documents.
  double CausalPairsPerRow(
      int64_t latest = std::numeric_limits<int64_t>::max()) const;
  bool separate_documents() const { return options_.separate_documents; }
  int64_t windows() const { return sampler_.windows(); }
  int64_t tokens() const { return sequence_->tokens(); }
  int64_t vocab_size() const { return options_.vocab_size; }
  int64_t context_length() const { return options_.context_length; }
  const std::string& description() const { return options_.description; }

 private:
  DataSource(std::shared_ptr<const TokenSequence> sequence, Options options);
  struct Row {
    absl::Span<int64_t> ids, targets, positions;
  };
  // One window; padding if `sample` is negative.
  absl::Status FillRow(int64_t sample, const Row& row) const;
  // The documents of a window's inputs and targets.
  DocumentIndex WindowDocuments(int64_t window) const;
  int64_t ValidTargets(int64_t begin, int64_t end) const;

  const std::shared_ptr<const TokenSequence> sequence_;
  const Options options_;
  const WindowSampler sampler_;
  const DocumentIndex documents_;  // a single one unless separate_documents
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_DATA_SOURCE_H_
