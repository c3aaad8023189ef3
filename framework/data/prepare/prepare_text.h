#ifndef FRAMEWORK_DATA_PREPARE_PREPARE_TEXT_H_
#define FRAMEWORK_DATA_PREPARE_PREPARE_TEXT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/data/prepare/corpus.h"
#include "framework/data/prepare/corpus_manifest.h"
#include "framework/data/prepare/progress.h"
#include "framework/data/read/token_file.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

struct PrepareOptions {
  TokenizerKind tokenizer = TokenizerKind::kBpe;
  int64_t vocab_size = 10000;         // BPE: at least 300; bytes: 257 or more
  double validation_fraction = 0.01;  // of the text, in [0, 0.5]
  uint64_t seed = 0;                  // picks the validation documents
  // Ends a document inside a file and is no part of it, as in TinyStories.
  std::string separator = "<|endoftext|>";
  // Files that are skipped are named in the log.
  InvalidText invalid_text = InvalidText::kRefuse;
  int threads = 0;  // 0: one per core
  ProgressSink progress;
  // Asked before the unfinished folder is made and after each part that went
  // into it: an error ends the preparation. May be empty.
  std::function<absl::Status()> check_stop;
  // What to change where the vocabulary is too small for the text.
  std::string vocab_size_advice =
      "raise --vocab_size to at least that, or use --tokenizer=bytes";
};

// The files that match shell patterns, sorted, each once. NotFound names a
// pattern without a match.
absl::StatusOr<std::vector<std::string>> ExpandGlobs(
    const std::vector<std::string>& patterns);

// Makes the folder `out`, which must not exist; whether it can be made is tried
// before the text is read. Learns a tokenizer on some
// 6 MiB of the training documents, encodes all, writes tokens and manifest. The
// same text and options give the same bytes. A file is a document, or several
// where it holds the separator. Of several, those longer than 64 KiB are split
// between training and validation in parts of that size, cut at line ends, and
// where whole documents and parts are far from the fraction, one is cut; of a
// single document the tail is for validation. `out` appears complete, by one
// rename, or not at all; a process that is killed leaves an unfinished folder
// beside it.
absl::StatusOr<Manifest> PrepareText(const std::vector<std::string>& files,
                                     const std::string& out,
                                     const PrepareOptions& options);

// Removes unfinished folders of `out`. While nobody else prepares it.
absl::Status RemoveUnfinished(const std::string& out);

// An opened folder of PrepareText().
struct PreparedFolder {
  Manifest manifest;
  std::unique_ptr<Tokenizer> tokenizer;
  TokenFile train;
  std::optional<TokenFile> validation;
};

// Verifies every file against the manifest's checksums: DataLoss names the file
// that differs.
absl::StatusOr<PreparedFolder> OpenPreparedFolder(const std::string& folder);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_PREPARE_TEXT_H_
