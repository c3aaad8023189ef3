#include "framework/program/offset_allocator.h"

#include <algorithm>
#include <iterator>

#include "framework/base/check.h"
#include "framework/base/round_up.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

OffsetAllocator::OffsetAllocator(int64_t capacity) {
  const int64_t end = capacity / kAlignment * kAlignment;
  if (end > 0) free_[0] = end;
}

std::optional<int64_t> OffsetAllocator::TakeLowest(int64_t bytes,
                                                   const Allowed& allowed) {
  const int64_t rounded = RoundUp(bytes, kAlignment);
  int64_t from = 0;
  for (const auto& [begin, end] : free_) {
    from = std::max(from, begin);
    while (from + rounded <= end) {
      const std::optional<int64_t> offset = allowed(from);
      if (!offset.has_value()) return std::nullopt;
      if (*offset == from) return Take(from, rounded);
      // A range begins at the next multiple, which may not be allowed.
      from = RoundUp(*offset, kAlignment);
    }
  }
  return std::nullopt;
}

std::optional<int64_t> OffsetAllocator::TakeHighest(int64_t bytes) {
  const int64_t rounded = RoundUp(bytes, kAlignment);
  for (auto hole = free_.rbegin(); hole != free_.rend(); ++hole) {
    if (hole->first + rounded <= hole->second) {
      return Take(hole->second - rounded, rounded);
    }
  }
  return std::nullopt;
}

int64_t OffsetAllocator::Take(int64_t offset, int64_t bytes) {
  if (bytes == 0) return offset;
  const auto hole = std::prev(free_.upper_bound(offset));
  const auto [begin, end] = *hole;
  TESSERA_CHECK(begin <= offset && offset + bytes <= end, "no hole at ",
                offset);
  free_.erase(hole);
  if (begin < offset) free_[begin] = offset;
  if (offset + bytes < end) free_[offset + bytes] = end;
  extent_ = std::max(extent_, offset + bytes);
  return offset;
}

void OffsetAllocator::Free(int64_t offset, int64_t bytes) {
  int64_t begin = offset, end = offset + RoundUp(bytes, kAlignment);
  if (begin == end) return;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->second == begin) {
      begin = previous->first;
      free_.erase(previous);
    }
  }
  free_[begin] = end;
}

}  // namespace tessera
