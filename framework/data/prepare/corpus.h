#ifndef FRAMEWORK_DATA_PREPARE_CORPUS_H_
#define FRAMEWORK_DATA_PREPARE_CORPUS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "framework/data/prepare/unpack.h"

namespace tessera {

// How to handle a file that is not text: one that is not UTF-8, or that
// contains a NUL byte, as binary files and UTF-16 do.
enum class InvalidText {
  kRefuse,
  kSkip,
  kKeep,  // keep it byte for byte
};

struct CorpusOptions {
  std::string separator;  // empty: a file is one document
  InvalidText invalid_text = InvalidText::kRefuse;
  // Divides long documents, if possible, where a byte-level BPE begins a
  // pre-token in any case, so that the parts have the ids of the whole.
  bool divide_between_pre_tokens = false;
  // By the name of a file: the text file to read instead. Messages show the
  // name.
  absl::flat_hash_map<std::string, UnpackedText> unpacked;
  // Called before each read of about a megabyte: an error stops the scan. May
  // be empty.
  std::function<absl::Status()> check_stop;
};

// Text files divided into documents, and long documents into parts.
class Corpus {
 public:
  // The input of one call of the tokenizer. Small, because there is at least
  // one per document.
  struct Part {
    int64_t begin = 0;  // byte in the file
    int32_t file = 0;
    int32_t bytes : 30 = 0;
    bool ends_document : 1 = false;
    bool is_validation : 1 = false;  // set by document_validation_split.h
  };
  static_assert(sizeof(Part) == 16);

  // Reads every file once; holds out nothing. InvalidArgument if there is no
  // text, or, with file and byte, for a file that is rejected.
  static absl::StatusOr<Corpus> Scan(const std::vector<std::string>& files,
                                     const CorpusOptions& options);

  const std::vector<Part>& parts() const { return parts_; }
  std::vector<Part>& parts() { return parts_; }
  int64_t documents() const { return documents_; }
  int64_t bytes() const { return bytes_; }
  int64_t non_utf8_documents() const { return non_utf8_documents_; }
  // File, byte and reason of each file that was skipped.
  const std::vector<std::string>& skipped() const { return skipped_; }

  absl::Status Read(const Part& part, std::string* text) const;

 private:
  // If a file is not text and is not kept, only adds the reason to skipped_.
  absl::Status AddFile(const std::string& name, const UnpackedText& file,
                       int32_t index, const CorpusOptions& options);
  void Append(Corpus other);

  std::vector<std::string> files_;  // their paths
  std::vector<Part> parts_;
  int64_t documents_ = 0;
  int64_t bytes_ = 0;
  int64_t non_utf8_documents_ = 0;
  std::vector<std::string> skipped_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_CORPUS_H_
