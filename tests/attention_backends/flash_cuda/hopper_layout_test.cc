// The index arithmetic of the Hopper kernels, without a GPU.

#include <set>
#include <utility>

#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/hopper/tile_scheduler.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "gtest/gtest.h"

namespace tessera::flash::hopper {
namespace {

TEST(TileSchedulerTest, HandsOutEveryTileOnceAndLongTilesFirst) {
  for (const int section : {1, 3, 4, 7, 100}) {
    const TileScheduler scheduler = {
        .tiles = 5, .heads = 7, .section = section};
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < scheduler.count(); ++i) {
      const TileScheduler::Tile tile = scheduler.At(i);
      EXPECT_TRUE(0 <= tile.index && tile.index < 5) << tile.index;
      EXPECT_TRUE(0 <= tile.head && tile.head < 7) << tile.head;
      seen.insert({tile.index, tile.head});
    }
    EXPECT_EQ(seen.size(), 35u) << "section " << section;
    EXPECT_EQ(scheduler.At(0).index, 4);
    EXPECT_EQ(scheduler.At(scheduler.count() - 1).index, 0);
  }
}

template <typename Dq>
void ExpectBijection() {
  std::set<std::pair<int, int>> seen;
  for (int i = 0; i < Dq::kElements; ++i) {
    const auto place = Dq::At(i);
    EXPECT_TRUE(0 <= place.query && place.query < Dq::kQueries);
    const int row = Dq::kTransposed ? place.column : place.query;
    const bool used = Dq::IsUsed(row / 64, row % 64 / 16);
    EXPECT_EQ(used, place.column < Dq::kHeadDim);
    if (used) seen.insert({place.query, place.column});
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(Dq::kQueries) * Dq::kHeadDim);
}

TEST(DqTileTest, EveryElementHasOnePlace) {
  ExpectBijection<DqTileOf<64, false>>();
  ExpectBijection<DqTileOf<80, false>>();
  ExpectBijection<DqTileOf<96, false>>();
  ExpectBijection<DqTileOf<128, false>>();
  ExpectBijection<DqTileOf<128, true>>();
}

}  // namespace
}  // namespace tessera::flash::hopper
