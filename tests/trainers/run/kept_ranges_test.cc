#include "trainers/run/kept_ranges.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "BEGIN+NUMEL at PLACE" of each part.
std::vector<std::string> In(const KeptRanges& kept, int64_t begin,
                            int64_t end) {
  std::vector<std::string> parts;
  for (const KeptRanges::Part& part : kept.In(begin, end)) {
    parts.push_back(
        absl::StrCat(part.begin, "+", part.numel, " at ", part.place));
  }
  return parts;
}

TEST(KeptRangesTest, TheWholeBufferIsInPlace) {
  const KeptRanges whole;
  EXPECT_EQ(whole.PlaceOf(7), 7);
  EXPECT_THAT(In(whole, 3, 9), ElementsAre("3+6 at 3"));
}

TEST(KeptRangesTest, RangesFollowEachOtherAndEqualOnesAndNeighboursAreOne) {
  const KeptRanges kept({{30, 40}, {0, 5}, {5, 8}, {20, 22}, {0, 5}});
  EXPECT_EQ(kept.numel(), 20);
  EXPECT_EQ(kept.PlaceOf(0), 0);
  EXPECT_EQ(kept.PlaceOf(6), 6);
  EXPECT_EQ(kept.PlaceOf(20), 8);
  EXPECT_EQ(kept.PlaceOf(31), 11);
  EXPECT_THAT(In(kept, 0, 100),
              ElementsAre("0+8 at 0", "20+2 at 8", "30+10 at 10"));
  EXPECT_THAT(In(kept, 4, 31),
              ElementsAre("4+4 at 4", "20+2 at 8", "30+1 at 10"));
  EXPECT_THAT(In(kept, 8, 20), IsEmpty());
  EXPECT_THAT(In(kept, 22, 22), IsEmpty());
}

TEST(KeptRangesTest, NothingIsKeptOfNothing) {
  const KeptRanges none(std::vector<std::pair<int64_t, int64_t>>{});
  EXPECT_EQ(none.numel(), 0);
  EXPECT_THAT(In(none, 0, 100), IsEmpty());
}

}  // namespace
}  // namespace tessera
