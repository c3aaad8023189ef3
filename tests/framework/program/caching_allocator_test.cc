#include "framework/program/caching_allocator.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// The two counts after one request of `bytes`.
struct Counts {
  int64_t allocated, reserved;
  bool operator==(const Counts&) const = default;
};
Counts AfterOne(int64_t bytes) {
  CachingAllocator allocator;
  EXPECT_TRUE(allocator.Allocate(bytes).has_value());
  return {allocator.allocated(), allocator.reserved()};
}

TEST(CachingAllocatorTest, RoundsRequestsAndSegments) {
  EXPECT_EQ(AfterOne(1), (Counts{512, 2 * kMiB}));
  EXPECT_EQ(AfterOne(513), (Counts{1024, 2 * kMiB}));
  EXPECT_EQ(AfterOne(kMiB), (Counts{kMiB, 2 * kMiB}));
  EXPECT_EQ(AfterOne(kMiB + 1), (Counts{kMiB + 512, 20 * kMiB}));
  EXPECT_EQ(AfterOne(10 * kMiB - 1), (Counts{10 * kMiB, 10 * kMiB}));
  EXPECT_EQ(AfterOne(10 * kMiB - 512), (Counts{10 * kMiB - 512, 20 * kMiB}));
  EXPECT_EQ(AfterOne(11 * kMiB - 512), (Counts{11 * kMiB - 512, 12 * kMiB}));
  // A rest of 1 MiB or less stays with a large block.
  EXPECT_EQ(AfterOne(11 * kMiB), (Counts{12 * kMiB, 12 * kMiB}));
  EXPECT_EQ(AfterOne(13 * kMiB + 7), (Counts{14 * kMiB, 14 * kMiB}));
}

TEST(CachingAllocatorTest, TakesTheSmallestFreeBlock) {
  CachingAllocator allocator;
  const int64_t large = *allocator.Allocate(40 * kMiB);
  const int64_t fits = *allocator.Allocate(14 * kMiB);
  allocator.Free(large);
  allocator.Free(fits);
  EXPECT_EQ(allocator.Allocate(13 * kMiB), fits);
  EXPECT_EQ(allocator.Allocate(15 * kMiB), large);
  EXPECT_EQ(allocator.Allocate(25 * kMiB), large + 15 * kMiB);  // its rest
  EXPECT_EQ(allocator.reserved(), 54 * kMiB);
}

TEST(CachingAllocatorTest, SmallAndLargeRequestsDoNotShareSegments) {
  CachingAllocator allocator;
  allocator.Free(*allocator.Allocate(30 * kMiB));
  ASSERT_TRUE(allocator.Allocate(512).has_value());
  EXPECT_EQ(allocator.reserved(), 32 * kMiB);
}

TEST(CachingAllocatorTest, MergesNeighboursButNotSegments) {
  CachingAllocator allocator;
  std::vector<int64_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*allocator.Allocate(5 * kMiB));
  EXPECT_EQ(allocator.reserved(), 20 * kMiB);
  for (const int i : {0, 2, 1}) allocator.Free(blocks[i]);
  EXPECT_EQ(allocator.Allocate(15 * kMiB), blocks[0]);
  allocator.Free(blocks[0]);
  allocator.Free(blocks[3]);
  EXPECT_EQ(allocator.Allocate(20 * kMiB), blocks[0]);
  allocator.Free(blocks[0]);

  allocator.Free(*allocator.Allocate(30 * kMiB));
  EXPECT_EQ(allocator.reserved(), 50 * kMiB);
  ASSERT_TRUE(allocator.Allocate(50 * kMiB).has_value());
  EXPECT_EQ(allocator.reserved(), 100 * kMiB);
}

TEST(CachingAllocatorTest, ReturnsFreeSegmentsWhenTheDeviceIsFull) {
  CachingAllocator allocator(/*capacity=*/60 * kMiB);
  const int64_t kept = *allocator.Allocate(5 * kMiB);  // of 20 MiB
  allocator.Free(*allocator.Allocate(30 * kMiB));
  EXPECT_TRUE(allocator.Allocate(40 * kMiB).has_value());
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
  EXPECT_EQ(allocator.peak_reserved(), 60 * kMiB);
  EXPECT_FALSE(allocator.Allocate(20 * kMiB).has_value());
  EXPECT_EQ(allocator.Allocate(15 * kMiB), kept + 5 * kMiB);
  EXPECT_EQ(allocator.allocated(), 60 * kMiB);
}

TEST(CachingAllocatorTest, KeepsSegmentsInUseWhenTheDeviceIsFull) {
  CachingAllocator allocator(/*capacity=*/60 * kMiB);
  // One segment of 20 MiB; its first and last quarters become free.
  std::vector<int64_t> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*allocator.Allocate(5 * kMiB));
  allocator.Free(blocks[0]);
  allocator.Free(blocks[3]);
  EXPECT_FALSE(allocator.Allocate(42 * kMiB).has_value());
  EXPECT_EQ(allocator.reserved(), 20 * kMiB);
  EXPECT_EQ(allocator.allocated(), 10 * kMiB);
  EXPECT_TRUE(allocator.Allocate(40 * kMiB).has_value());
  // What is free in it still serves requests.
  EXPECT_EQ(allocator.Allocate(5 * kMiB), blocks[0]);
  EXPECT_EQ(allocator.Allocate(5 * kMiB), blocks[3]);
  EXPECT_EQ(allocator.reserved(), 60 * kMiB);
}

// Allocates and frees at random; returns the counts over time.
std::vector<Counts> RandomCounts(int seed) {
  std::mt19937 random(seed);
  CachingAllocator allocator;
  std::map<int64_t, int64_t> live;  // address -> bytes asked for
  int64_t asked = 0;
  std::vector<Counts> counts;
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 && !live.empty()) {
      auto block = live.lower_bound(static_cast<int64_t>(random() % kMiB));
      if (block == live.end()) block = live.begin();
      allocator.Free(block->first);
      asked -= block->second;
      live.erase(block);
    } else {
      const int64_t bytes = 1 + (int64_t{1} << random() % 26);
      const int64_t address = *allocator.Allocate(bytes);
      const auto next = live.lower_bound(address);
      EXPECT_TRUE(next == live.end() || address + bytes <= next->first);
      if (next != live.begin()) {
        const auto& [before, size] = *std::prev(next);
        EXPECT_LE(before + size, address);
      }
      live[address] = bytes;
      asked += bytes;
    }
    EXPECT_GE(allocator.allocated(), asked);
    EXPECT_GE(allocator.reserved(), allocator.allocated());
    counts.push_back({allocator.allocated(), allocator.reserved()});
  }
  for (const auto& [address, bytes] : live) allocator.Free(address);
  EXPECT_EQ(allocator.allocated(), 0);
  EXPECT_EQ(allocator.reserved(), counts.back().reserved);
  return counts;
}

TEST(CachingAllocatorTest, BlocksNeverOverlap) {
  for (int seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(RandomCounts(seed), RandomCounts(seed));
  }
}

}  // namespace
}  // namespace tessera
