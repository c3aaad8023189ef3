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
#include "framework/data/prepare/unpack.h"
#include "framework/data/read/token_file.h"
#include "framework/data/tokenize/split_pattern.h"
#include "framework/data/tokenize/tokenizer.h"

namespace tessera {

struct PrepareOptions {
  TokenizerKind tokenizer = TokenizerKind::kBpe;
  // A tokenizer.json, for kByteLevelBpe; empty: a vocabulary is learned.
  std::string tokenizer_file;
  // By which a learned byte-level BPE splits text: see split_pattern.h.
  std::string split_pattern{kLlama3Pattern};
  // Not used with a tokenizer_file. BPE: at least 300; others: 257 or more.
  int64_t vocab_size = 10000;
  double validation_fraction = 0.01;  // fraction of the text, in [0, 0.5]
  uint64_t seed = 0;                  // chooses the validation documents
  // Separates documents inside a file, as in TinyStories; not part of them.
  std::string separator = "<|endoftext|>";
  InputFormat input_format = InputFormat::kAuto;
  std::string json_field = "text";  // of JSON lines: the field with the text
  // With kSkip, also skips JSON lines without a text. What is skipped is named
  // in the log.
  InvalidText invalid_text = InvalidText::kRefuse;
  int threads = 0;  // 0: one per core
  ProgressSink progress;
  // Called before the unfinished folder is created and, once there is one,
  // after each part that is read or written: an error stops the preparation.
  // May be empty.
  std::function<absl::Status()> check_stop;
  // What to change if the vocabulary is too small for the text.
  std::string vocab_size_advice =
      "raise --vocab_size to at least that, or use --tokenizer=bytes";
};

// The files that match shell patterns, sorted and without duplicates; "-",
// standard input, stays. NotFound names a pattern without a match.
absl::StatusOr<std::vector<std::string>> ExpandGlobs(
    const std::vector<std::string>& patterns);

// Creates the folder `out`, which must not exist: learns a tokenizer on a part
// of the training documents (about 6 MiB for SentencePiece, 100 MiB for
// byte-level BPE) unless one is given, encodes everything, writes tokens and
// manifest. The same text and options give the same bytes. A file is one
// document, or several if it contains the separator; a JSON line is a document.
// For the validation split see document_validation_split.h.
//
// Input that is not a plain text file (unpack.h) is first unpacked next to
// `out`, because text is read several times. Memory holds some megabytes per
// thread, 16 bytes per part (corpus.h), and 8 more while parts are held out.
//
// Checks that `out` can be created before reading the text. `out` appears
// complete, by a rename, or not at all; a killed process leaves an unfinished
// folder next to it.
absl::StatusOr<Manifest> PrepareText(const std::vector<std::string>& files,
                                     const std::string& out,
                                     const PrepareOptions& options);

// A folder of PrepareText(), opened.
struct PreparedFolder {
  Manifest manifest;
  std::unique_ptr<Tokenizer> tokenizer;
  TokenFile train;
  std::optional<TokenFile> validation;
  std::string tokenizer_path;
};

// Verifies every file against the manifest's checksums: DataLoss names the file
// that differs.
absl::StatusOr<PreparedFolder> OpenPreparedFolder(const std::string& folder);

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_PREPARE_TEXT_H_
