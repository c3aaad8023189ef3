#ifndef FRAMEWORK_DATA_PREPARE_CORPUS_MANIFEST_H_
#define FRAMEWORK_DATA_PREPARE_CORPUS_MANIFEST_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

// One split of a prepared folder.
struct SplitManifest {
  int64_t documents = 0;  // a divided document counts where it ends
  int64_t bytes = 0;      // of text
  int64_t tokens = 0;     // end-of-document tokens included
  uint64_t checksum = 0;  // XXH3-64 of the shard's tokens
};

// manifest.json of a prepared folder. The folder also holds train.tok,
// validation.tok unless its split is empty, and the tokenizer: tokenizer.json
// of a byte-level BPE, else tokenizer.model.
struct Manifest {
  static constexpr int kVersion = 1;

  TokenizerKind tokenizer = TokenizerKind::kBpe;
  int64_t vocab_size = 0;
  uint64_t tokenizer_checksum = 0;  // XXH3-64 of the tokenizer
  SplitManifest train;
  SplitManifest validation;
  // Number of documents that are not valid UTF-8; they are kept byte for byte.
  int64_t non_utf8_documents = 0;
  // -1/N sum over the N validation tokens t of ln((n_t + 1) / (M + V)), where
  // n_t of the M training tokens are t and V is the vocabulary size. In nats
  // per token. If validation is empty, over the training tokens.
  double unigram_entropy = 0;
};

std::string ToJson(const Manifest& manifest);
// Checks the version, and that every field exists with the right type.
absl::StatusOr<Manifest> ParseManifest(absl::string_view json);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_CORPUS_MANIFEST_H_
