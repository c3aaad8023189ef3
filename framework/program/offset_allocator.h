#ifndef FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_
#define FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

namespace tessera {

// Allocates byte ranges of a buffer that need not exist yet. Ranges begin at
// multiples of 256 bytes.
class OffsetAllocator {
 public:
  // `capacity` is the buffer's size in bytes, unlimited by default.
  explicit OffsetAllocator(int64_t capacity = INT64_MAX / 2);

  // Returns the first offset >= `offset` at which a range of `bytes` may begin;
  // nullopt if there is none.
  using Allowed = std::function<std::optional<int64_t>(int64_t offset)>;

  // Take the lowest free range that `allowed` accepts, or the highest; nullopt
  // if there is none.
  std::optional<int64_t> TakeLowest(
      int64_t bytes,
      const Allowed& allowed = [](int64_t offset) { return offset; });
  std::optional<int64_t> TakeHighest(int64_t bytes);
  // Frees the range of `bytes` at `offset`, which a Take...() returned.
  void Free(int64_t offset, int64_t bytes);

  // The end of the highest range ever taken.
  int64_t extent() const { return extent_; }

 private:
  int64_t Take(int64_t offset, int64_t bytes);

  std::map<int64_t, int64_t> free_;  // begin -> end
  int64_t extent_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_OFFSET_ALLOCATOR_H_
