#ifndef FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_
#define FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

namespace tessera {

// Hands out byte ranges of one buffer that need not exist yet. Ranges begin at
// multiples of 256 bytes, as those of LibTorch's allocator do.
class OffsetAllocator {
 public:
  // `capacity`: bytes of the buffer; the default is without a bound.
  explicit OffsetAllocator(int64_t capacity = INT64_MAX / 2);

  // Moves a range of `bytes` that would begin at `offset` up to the next place
  // that is allowed; nothing where there is none further up.
  using Allowed = std::function<std::optional<int64_t>(int64_t offset)>;

  // The lowest free offset that `allowed` accepts, if there is one.
  std::optional<int64_t> TakeLowest(int64_t bytes, const Allowed& allowed);
  // The lowest and the highest free offset; nothing where no range is left.
  std::optional<int64_t> TakeLowest(int64_t bytes);
  std::optional<int64_t> TakeHighest(int64_t bytes);
  // Gives back what a Take...() returned for `bytes`.
  void Free(int64_t offset, int64_t bytes);

  // The end of the highest range that was ever taken.
  int64_t extent() const { return extent_; }

 private:
  int64_t Take(int64_t offset, int64_t bytes);

  std::map<int64_t, int64_t> free_;  // begin -> end
  int64_t extent_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_
