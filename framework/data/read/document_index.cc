#include "framework/data/read/document_index.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "framework/base/check.h"
#include "framework/data/read/permutation.h"

namespace tessera {

DocumentIndex::DocumentIndex(std::vector<int64_t> starts)
    : owned_(std::make_shared<const std::vector<int64_t>>(std::move(starts))),
      starts_(*owned_) {
  TESSERA_CHECK(starts_.empty() || starts_.front() > 0);
  TESSERA_CHECK(std::adjacent_find(starts_.begin(), starts_.end(),
                                   std::greater_equal<int64_t>()) ==
                starts_.end());
}

DocumentIndex DocumentIndex::Slice(int64_t begin, int64_t end) const {
  const auto first =
      std::upper_bound(starts_.begin(), starts_.end(), origin_ + begin);
  const auto last = std::lower_bound(first, starts_.end(), origin_ + end);
  DocumentIndex slice = *this;
  slice.starts_ = starts_.subspan(first - starts_.begin(), last - first);
  slice.origin_ = origin_ + begin;
  return slice;
}

uint64_t DocumentIndex::Hash() const {
  uint64_t hash = 0;
  for (int64_t i = 0; i < size(); ++i) {
    hash = Mix(hash, static_cast<uint64_t>((*this)[i]));
  }
  return hash;
}

}  // namespace tessera
