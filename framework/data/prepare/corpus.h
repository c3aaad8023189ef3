#ifndef FRAMEWORK_DATA_PREPARE_CORPUS_H_
#define FRAMEWORK_DATA_PREPARE_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

// What happens to a file that is not text: one with a NUL byte, which binary
// files have and UTF-16, or that is not UTF-8.
enum class InvalidText {
  kRefuse,
  kSkip,
  kKeep,  // byte for byte
};

struct CorpusOptions {
  double validation_fraction = 0;
  uint64_t seed = 0;
  std::string separator;  // empty: a file is one document
  InvalidText invalid_text = InvalidText::kRefuse;
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
  // InvalidArgument where there is no text, or too little to hold out any, and
  // with file and byte for a file that is refused.
  static absl::StatusOr<Corpus> Scan(const std::vector<std::string>& files,
                                     const CorpusOptions& options);

  const std::vector<Part>& parts() const { return parts_; }
  int64_t bytes() const { return bytes_; }
  int64_t non_utf8_documents() const { return non_utf8_documents_; }
  // File, byte and reason of each file that was skipped.
  const std::vector<std::string>& skipped() const { return skipped_; }

  absl::Status Read(const Part& part, std::string* text) const;

 private:
  // If a file is not text and is not kept, only the reason enters skipped_.
  absl::Status AddFile(const std::string& path, int32_t index,
                       const CorpusOptions& options);
  void Append(const Corpus& other);
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
  std::vector<std::string> skipped_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_PREPARE_CORPUS_H_
