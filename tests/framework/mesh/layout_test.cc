#include "framework/mesh/layout.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

TEST(MeshTest, RanksHaveAllCoordinatesAndNeighboursDifferInTheLastAxis) {
  const Mesh mesh = {.degrees = {2, 3, 1, 1, 4}};
  EXPECT_EQ(mesh.ranks(), 24);
  std::set<std::vector<int>> places;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const int pipeline = mesh.CoordinateOf(rank, MeshAxis::kPipeline);
    const int replica = mesh.CoordinateOf(rank, MeshAxis::kReplica);
    const int tensor = mesh.CoordinateOf(rank, MeshAxis::kTensor);
    EXPECT_EQ(rank, (pipeline * 3 + replica) * 4 + tensor);
    EXPECT_EQ(mesh.CoordinateOf(rank, MeshAxis::kShard), 0);
    places.insert({pipeline, replica, tensor});
  }
  EXPECT_EQ(places.size(), 24u);
}

TEST(LayoutTest, DegreesFollowFromTheNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Layout whole = MakeLayout({}, ranks, rank).value();
      EXPECT_EQ(whole.mesh.degree(MeshAxis::kReplica), ranks);
      EXPECT_EQ(whole.sharding().zero, 0);
      const Layout divided = MakeLayout({.zero = 3}, ranks, rank).value();
      EXPECT_EQ(divided.mesh.degree(MeshAxis::kShard), ranks);
      EXPECT_EQ(divided.sharding().zero, ranks > 1 ? 3 : 0);
      for (const Layout& layout : {whole, divided}) {
        EXPECT_EQ(layout.data_ranks(), ranks);
        EXPECT_EQ(layout.data_rank(), rank);
        EXPECT_EQ(layout.sharding().shards, ranks);
        EXPECT_EQ(layout.sharding().index, rank);
        EXPECT_EQ(layout.is_writer(), rank == 0);
      }
    }
  }
}

TEST(LayoutTest, TheRanksOfOneCopyOfTheStateWriteCheckpoints) {
  for (int rank = 0; rank < 6; ++rank) {
    const auto ranks = [&](const LayoutOptions& options) {
      return MakeLayout(options, 6, rank).value().checkpoint_ranks();
    };
    const std::vector<int> all = {0, 1, 2, 3, 4, 5};
    EXPECT_EQ(ranks({}), all);
    EXPECT_EQ(ranks({.zero = 3}), all);
    EXPECT_EQ(ranks({.zero = 1, .replica = 2}), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(ranks({.zero = 3, .replica = 3}), (std::vector<int>{0, 1}));
  }
  EXPECT_EQ(MakeLayout({.zero = 1}, 1, 0).value().checkpoint_ranks(),
            std::vector<int>{0});
}

// Groups of neighbours divide state; ranks with the same part are replicas.
TEST(LayoutTest, ReplicasOfShards) {
  const Layout layout = MakeLayout({.zero = 2, .replica = 2}, 6, 4).value();
  EXPECT_EQ(Describe(layout),
            "6 ranks: replica 2 x shard 3, ZeRO 2: each has 1/3 of the "
            "optimizer's state and gradients");
  EXPECT_EQ(layout.data_ranks(), 6);
  EXPECT_EQ(layout.data_rank(), 4);
  const Sharding sharding = layout.sharding();
  EXPECT_EQ(sharding.shards, 3);
  EXPECT_EQ(sharding.index, 1);
  EXPECT_EQ(sharding.replicas, 2);
  EXPECT_EQ(layout.RanksAlong(MeshAxis::kShard), std::vector<int>({3, 4, 5}));
  EXPECT_EQ(layout.RanksAlong(MeshAxis::kReplica), std::vector<int>({1, 4}));
}

TEST(LayoutTest, SaysWhatItIs) {
  EXPECT_EQ(Describe(MakeLayout({}, 1, 0).value()), "1 rank");
  EXPECT_EQ(Describe(MakeLayout({}, 4, 0).value()), "4 ranks: replica 4");
  EXPECT_EQ(Describe(MakeLayout({.zero = 1}, 4, 0).value()),
            "4 ranks: shard 4, ZeRO 1: each has 1/4 of the optimizer's state");
  EXPECT_EQ(Describe(MakeLayout({.zero = 3}, 4, 0).value()),
            "4 ranks: shard 4, ZeRO 3: each has 1/4 of the optimizer's "
            "state, gradients and weights");
}

TEST(LayoutTest, RefusesWhatDoesNotFitTheRanks) {
  struct Refused {
    LayoutOptions options;
    int ranks;
    const char* message;
  };
  for (const Refused& refused : std::vector<Refused>{
           {{.replica = 3},
            2,
            "layout.replica: replica (3) x shard (1) is 3, but the run has 2 "
            "ranks; set degrees whose product is that, or remove them"},
           {{.zero = 1, .shard = 2}, 1, "is 2, but the run has 1 rank;"},
           {{.zero = 1, .replica = 2, .shard = 2},
            2,
            "replica (2) x shard (2) is 4"},
           {{.shard = 2}, 4, "layout.shard: is 2, but with layout.zero 0"},
           {{.zero = 1, .replica = 2},
            2,
            "layout.shard: is 1, so that no state"},
           {{.zero = 1, .replica = 65536, .shard = 65536},
            1,
            "is 4294967296, but"}}) {
    const auto layout = MakeLayout(refused.options, refused.ranks, 0);
    ASSERT_FALSE(layout.ok()) << refused.message;
    EXPECT_THAT(layout.status().message(), HasSubstr(refused.message));
  }
}

}  // namespace
}  // namespace tessera
