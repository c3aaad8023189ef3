#ifndef FRAMEWORK_PROGRAM_CACHING_ALLOCATOR_H_
#define FRAMEWORK_PROGRAM_CACHING_ALLOCATOR_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tessera {

// LibTorch's caching allocator for CUDA without the memory: takes the same
// decisions as c10/cuda/CUDACachingAllocator.cpp of LibTorch 2.11 with default
// settings and one stream, and counts.
//
// A request is rounded up to a multiple of 512 bytes and gets the smallest free
// block that is large enough. If there is none, the device is asked for a
// segment. What a block has too much is split off, except 1 MiB or less of a
// large one. Segments are kept until the device has no memory left; then those
// that are free are returned to it.
//
//   request             segment
//   up to 1 MiB         2 MiB, only for such requests
//   below 10 MiB        20 MiB
//   others              the request, rounded up to a multiple of 2 MiB
class CachingAllocator {
 public:
  // `capacity` is the device memory that segments may take.
  explicit CachingAllocator(
      int64_t capacity = std::numeric_limits<int64_t>::max())
      : capacity_(capacity) {}

  // Returns the block's address; nullopt if the device's memory runs out. bytes
  // > 0.
  std::optional<int64_t> Allocate(int64_t bytes);
  void Free(int64_t address);

  // Bytes of allocated blocks, and of segments.
  int64_t allocated() const { return allocated_; }
  int64_t reserved() const { return reserved_; }
  int64_t peak_allocated() const { return peak_allocated_; }
  int64_t peak_reserved() const { return peak_reserved_; }

 private:
  struct Block {
    int64_t size = 0;
    bool small = false;  // in a segment for small requests
    bool free = true;
  };
  using Blocks = std::map<int64_t, Block>;  // by address

  bool AddSegment(int64_t bytes, bool small);
  void ReturnFreeSegments();
  void AddFree(Blocks::iterator block);
  void RemoveFree(Blocks::iterator block);

  const int64_t capacity_;
  Blocks blocks_;
  // (size, address) of the free blocks in segments for large requests, small
  // requests.
  std::set<std::pair<int64_t, int64_t>> free_[2];
  std::map<int64_t, int64_t> segments_;  // address -> bytes
  int64_t next_segment_ = 0;
  int64_t allocated_ = 0, reserved_ = 0;
  int64_t peak_allocated_ = 0, peak_reserved_ = 0;
};

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_CACHING_ALLOCATOR_H_
