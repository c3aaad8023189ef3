#include "trainers/run/kept_ranges.h"

#include <algorithm>

#include "framework/base/check.h"

namespace tessera {

KeptRanges::KeptRanges(std::vector<std::pair<int64_t, int64_t>> ranges)
    : whole_(false) {
  std::sort(ranges.begin(), ranges.end());
  ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
  for (const auto& [begin, end] : ranges) {
    // Neighbours become one range, which is one copy.
    if (!parts_.empty() && parts_.back().begin + parts_.back().numel == begin) {
      parts_.back().numel += end - begin;
    } else {
      parts_.push_back({begin, end - begin, numel_});
    }
    numel_ += end - begin;
  }
}

int64_t KeptRanges::PlaceOf(int64_t element) const {
  if (whole_) return element;
  const auto part = FirstAfter(element);
  TESSERA_CHECK(part != parts_.end() && part->begin <= element,
                "the copy does not have element ", element);
  return part->place + element - part->begin;
}

std::vector<KeptRanges::Part> KeptRanges::In(int64_t begin, int64_t end) const {
  if (whole_) return {{begin, end - begin, begin}};
  std::vector<Part> found;
  for (auto part = FirstAfter(begin); part != parts_.end() && part->begin < end;
       ++part) {
    const int64_t first = std::max(begin, part->begin);
    const int64_t last = std::min(end, part->begin + part->numel);
    found.push_back({first, last - first, part->place + first - part->begin});
  }
  return found;
}

std::vector<KeptRanges::Part>::const_iterator KeptRanges::FirstAfter(
    int64_t element) const {
  return std::upper_bound(
      parts_.begin(), parts_.end(), element,
      [](int64_t e, const Part& part) { return e < part.begin + part.numel; });
}

}  // namespace tessera
