#ifndef FRAMEWORK_DATA_READ_DOCUMENT_INDEX_H_
#define FRAMEWORK_DATA_READ_DOCUMENT_INDEX_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace tessera {

// Where the documents of a sequence of tokens begin. The first document begins
// at token 0 and is not listed. Immutable; copies and slices share the list.
class DocumentIndex {
 public:
  // A single document.
  DocumentIndex() = default;
  // Documents that begin at 0 and at `starts`, which are positive and ascend
  // strictly.
  explicit DocumentIndex(std::vector<int64_t> starts);

  // The documents of tokens [begin, end), with places relative to `begin`,
  // which begins a document there. Found by binary search.
  DocumentIndex Slice(int64_t begin, int64_t end) const;

  // Number of listed documents: of all except the first one.
  int64_t size() const { return static_cast<int64_t>(starts_.size()); }
  // Where listed document `i` begins.
  int64_t operator[](int64_t i) const { return starts_[i] - origin_; }

  // A hash of the places.
  uint64_t Hash() const;

 private:
  std::shared_ptr<const std::vector<int64_t>> owned_;
  absl::Span<const int64_t> starts_;  // part of *owned_
  int64_t origin_ = 0;                // the token that is 0 here
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_READ_DOCUMENT_INDEX_H_
