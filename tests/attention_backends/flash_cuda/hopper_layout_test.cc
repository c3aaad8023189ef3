// The index arithmetic of the Hopper kernels that needs no GPU.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "attention_backends/flash_cuda/hopper/backward_layout.h"
#include "attention_backends/flash_cuda/hopper/dq_turns.h"
#include "attention_backends/flash_cuda/hopper/tile_order.h"
#include "attention_backends/flash_cuda/hopper/tiles.h"
#include "gtest/gtest.h"

namespace tessera::flash::hopper {
namespace {

TEST(TileOrderTest, HandsOutEveryTileOnceAndLongBlocksFirst) {
  for (const int section : {1, 3, 4, 7, 100}) {
    const TileOrder order = {.blocks = 5, .heads = 7, .section = section};
    std::set<std::pair<int, int>> seen;
    for (int i = 0; i < order.count(); ++i) {
      const TileOrder::Tile tile = order.At(i);
      EXPECT_TRUE(0 <= tile.block && tile.block < 5) << tile.block;
      EXPECT_TRUE(0 <= tile.head && tile.head < 7) << tile.head;
      seen.insert({tile.block, tile.head});
    }
    EXPECT_EQ(seen.size(), 35u) << "section " << section;
    EXPECT_EQ(order.At(0).block, 4);
    EXPECT_EQ(order.At(order.count() - 1).block, 0);
  }
}

// Each tile meets all blocks, in the order of their turns: a block comes to its
// tile no earlier than those before it when all go at one pace.
TEST(DqTurnsTest, RotatedTurnsAreThePermutationThatBlocksArriveIn) {
  for (const int blocks : {1, 2, 5, 8, 128}) {
    for (const int tiles : {1, 2, 7, 8, 64, 256}) {
      for (int tile = 0; tile < tiles; ++tile) {
        std::vector<int> arrival(blocks, -1);
        for (int block = 0; block < blocks; ++block) {
          const int turn = RotatedTurn(block, tile, blocks, tiles);
          ASSERT_TRUE(0 <= turn && turn < blocks);
          ASSERT_EQ(arrival[turn], -1) << "two blocks have turn " << turn;
          const int start = FirstTile(block, blocks, tiles);
          arrival[turn] = (tile - start + tiles) % tiles;
        }
        EXPECT_TRUE(std::is_sorted(arrival.begin(), arrival.end()))
            << blocks << " blocks, tile " << tile << " of " << tiles;
      }
    }
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
  ExpectBijection<DqTileOf<64>>();
  ExpectBijection<DqTileOf<80>>();
  ExpectBijection<DqTileOf<96>>();
  ExpectBijection<DqTileOf<128>>();
}

}  // namespace
}  // namespace tessera::flash::hopper
