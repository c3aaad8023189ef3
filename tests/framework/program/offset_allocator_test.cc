#include "framework/program/offset_allocator.h"

#include <algorithm>
#include <optional>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

TEST(OffsetAllocatorTest, LowestAndHighest) {
  OffsetAllocator free(/*capacity=*/2048);
  EXPECT_EQ(free.TakeLowest(100), 0);
  EXPECT_EQ(free.TakeHighest(300), 1536);
  EXPECT_EQ(free.TakeLowest(1280), 256);
  EXPECT_EQ(free.TakeLowest(1), std::nullopt);
  free.Free(256, 1280);
  EXPECT_EQ(
      free.TakeLowest(1, [](int64_t at) { return std::max<int64_t>(at, 300); }),
      512);
  EXPECT_EQ(free.TakeLowest(1, [](int64_t) { return std::nullopt; }),
            std::nullopt);
  // 512 would be the next multiple of 256 after 300, but is not allowed.
  EXPECT_EQ(free.TakeLowest(1,
                            [](int64_t at) {
                              return at <= 300 ? 300
                                               : std::max<int64_t>(at, 800);
                            }),
            1024);
  free.Free(0, 100);
  EXPECT_EQ(free.TakeLowest(512), 0);
  EXPECT_EQ(free.extent(), 2048);
}

}  // namespace
}  // namespace tessera::testing
