#ifndef FRAMEWORK_DATA_CORPUS_H_
#define FRAMEWORK_DATA_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

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
  // least one, with the smallest seeded hash. Where they have more than twice
  // that fraction of the bytes, or of less than 1000 parts less than half of
  // it: the parts in the order of the hash that fit into it and the tail of the
  // next for the bytes that are missing, half to one and a half times as many
  // where it can begin at a line then. Of a text that is a single document
  // always its last parts and such a tail; both halves end a document.
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
  // False, with nothing done, where the parts are far from the fraction.
  bool HoldOutParts(double fraction, absl::Span<const size_t> chosen);
  // False where that fraction is too little to hold out any.
  absl::StatusOr<bool> HoldOutBytes(double fraction,
                                    absl::Span<const size_t> order);
  absl::StatusOr<bool> HoldOutTail(size_t index, int64_t bytes);

  std::vector<std::string> files_;
  std::vector<Part> parts_;
  int64_t documents_ = 0;
  int64_t bytes_ = 0;
  int64_t non_utf8_documents_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_CORPUS_H_
