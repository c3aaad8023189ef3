#include "framework/program/caching_allocator.h"

#include <algorithm>
#include <iterator>

#include "framework/base/check.h"
#include "framework/base/round_up.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMinBlock = 512;
constexpr int64_t kLargestSmall = kMiB;

int64_t SegmentBytes(int64_t size) {
  if (size <= kLargestSmall) return 2 * kMiB;
  if (size < 10 * kMiB) return 20 * kMiB;
  return RoundUp(size, 2 * kMiB);
}

}  // namespace

std::optional<int64_t> CachingAllocator::Allocate(int64_t bytes) {
  TESSERA_CHECK(bytes > 0, bytes);
  const int64_t size = RoundUp(bytes, kMinBlock);
  const bool small = size <= kLargestSmall;
  auto found = free_[small].lower_bound({size, 0});
  if (found == free_[small].end()) {
    if (!AddSegment(SegmentBytes(size), small)) return std::nullopt;
    found = free_[small].lower_bound({size, 0});
  }
  const auto block = blocks_.find(found->second);
  RemoveFree(block);
  const int64_t rest = block->second.size - size;
  if (small ? rest >= kMinBlock : rest > kLargestSmall) {
    block->second.size = size;
    AddFree(blocks_.insert({block->first + size, {rest, small}}).first);
  }
  allocated_ += block->second.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return block->first;
}

void CachingAllocator::Free(int64_t address) {
  auto block = blocks_.find(address);
  TESSERA_CHECK(block != blocks_.end() && !block->second.free, address);
  allocated_ -= block->second.size;
  const auto merge = [this](Blocks::iterator lower, Blocks::iterator upper) {
    lower->second.size += upper->second.size;
    blocks_.erase(upper);
    return lower;
  };
  const auto adjacent = [](Blocks::iterator lower, Blocks::iterator upper) {
    return lower->first + lower->second.size == upper->first;
  };
  if (const auto next = std::next(block);
      next != blocks_.end() && next->second.free && adjacent(block, next)) {
    RemoveFree(next);
    block = merge(block, next);
  }
  if (block != blocks_.begin()) {
    const auto previous = std::prev(block);
    if (previous->second.free && adjacent(previous, block)) {
      RemoveFree(previous);
      block = merge(previous, block);
    }
  }
  AddFree(block);
}

bool CachingAllocator::AddSegment(int64_t bytes, bool small) {
  if (reserved_ > capacity_ - bytes) ReturnFreeSegments();
  if (reserved_ > capacity_ - bytes) return false;
  AddFree(blocks_.insert({next_segment_, {bytes, small}}).first);
  segments_[next_segment_] = bytes;
  // Blocks of different segments are never adjacent.
  next_segment_ += bytes + kMinBlock;
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  return true;
}

void CachingAllocator::ReturnFreeSegments() {
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto block = blocks_.find(segment->first);
    if (!block->second.free || block->second.size != segment->second) {
      ++segment;
      continue;
    }
    RemoveFree(block);
    reserved_ -= segment->second;
    blocks_.erase(block);
    segment = segments_.erase(segment);
  }
}

void CachingAllocator::AddFree(Blocks::iterator block) {
  block->second.free = true;
  free_[block->second.small].insert({block->second.size, block->first});
}

void CachingAllocator::RemoveFree(Blocks::iterator block) {
  free_[block->second.small].erase({block->second.size, block->first});
  block->second.free = false;
}

}  // namespace tessera
