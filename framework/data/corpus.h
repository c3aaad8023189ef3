#ifndef FRAMEWORK_DATA_CORPUS_H_
#define FRAMEWORK_DATA_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

struct CorpusOptions {
  double validation_fraction = 0;
  uint64_t seed = 0;
  std::string separator;  // empty: a file is one document
};

// Text files cut into documents, and long documents into parts.
class Corpus {
 public:
  // The work of one encoding call; held out as a whole or not at all.
  struct Part {
    int32_t file = 0;
    int64_t begin = 0;  // byte in the file
    int64_t bytes = 0;
    bool ends_document = false;
    bool is_validation = false;
  };

  // Reads every file once. Holds out the round(fraction * parts) parts, and at
  // least one where the fraction is not 0, with the smallest seeded hash. Of a
  // text that is a single part, the tail becomes a part of its own and is held
  // out: that fraction of the bytes, or half to one and a half times as many
  // where it can begin at a line then. Both halves end a document.
  // InvalidArgument where there is no text, or too little to hold out any.
  static absl::StatusOr<Corpus> Scan(const std::vector<std::string>& files,
                                     const CorpusOptions& options);

  const std::vector<Part>& parts() const { return parts_; }
  int64_t bytes() const { return bytes_; }
  int64_t non_utf8_documents() const { return non_utf8_documents_; }

  absl::Status Read(const Part& part, std::string* text) const;

 private:
  void AddFile(int32_t file, absl::string_view text,
               absl::string_view separator);
  void AddDocument(int32_t file, int64_t begin, absl::string_view document);
  absl::Status HoldOut(const CorpusOptions& options);
  absl::Status HoldOutTail(double fraction);

  std::vector<std::string> files_;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
  int64_t non_utf8_documents_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_CORPUS_H_
