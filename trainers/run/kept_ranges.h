#ifndef TRAINERS_RUN_KEPT_RANGES_H_
#define TRAINERS_RUN_KEPT_RANGES_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace tessera {

// Which elements of a buffer a copy has, one range after another.
class KeptRanges {
 public:
  // All of the buffer, in place.
  KeptRanges() = default;
  // The ranges [begin, end), in any order. Equal ones count once; others do not
  // overlap.
  explicit KeptRanges(std::vector<std::pair<int64_t, int64_t>> ranges);

  // The elements of the copy; 0 if it is all of the buffer.
  int64_t numel() const { return numel_; }
  // The place in the copy of an element that it has.
  int64_t PlaceOf(int64_t element) const;

  // The elements of [begin, end) that the copy has, and their place there.
  struct Part {
    int64_t begin = 0, numel = 0, place = 0;
  };
  std::vector<Part> In(int64_t begin, int64_t end) const;

 private:
  // The first range that ends after `element`.
  std::vector<Part>::const_iterator FirstAfter(int64_t element) const;

  bool whole_ = true;
  int64_t numel_ = 0;
  std::vector<Part> parts_;  // by `begin`
};

}  // namespace tessera

#endif  // TRAINERS_RUN_KEPT_RANGES_H_
