#include "attention_backends/key_range.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Mask = AttentionMask<int>;

TEST(AttentionMask, MatchesTheDefinition) {
  for (const int s : {1, 5, 17, 40}) {
    for (const int t : {1, 5, 17, 40}) {
      for (const bool causal : {false, true}) {
        const Mask mask = {s, t, causal};
        const auto sees = [&](int query, int key) {
          return key < t && (!causal || key <= query + t - s);
        };
        for (int query = 0; query < s; ++query) {
          EXPECT_EQ(mask.Keys(query).begin, 0);
          for (int key = 0; key < t + 9; ++key) {
            EXPECT_EQ(key < mask.Keys(query).end, sees(query, key));
            EXPECT_EQ(key < mask.KeysOfRow(query).end, sees(query, key));
            if (key < t) {
              EXPECT_EQ(query >= mask.Queries(key).begin, sees(query, key));
              EXPECT_EQ(mask.Queries(key).end, s);
            }
          }
        }
        EXPECT_EQ(mask.KeysOfRow(s + 3).end, t);
      }
    }
  }
}

TEST(AttentionMask, TilesAreComputedAndMaskedIfNeeded) {
  constexpr int kQueries = 8, kKeys = 4;
  for (const int s : {1, 7, 8, 9, 30}) {
    for (const int t : {1, 7, 8, 9, 30}) {
      for (const bool causal : {false, true}) {
        const Mask mask = {s, t, causal};
        for (int first = 0; first < s; first += kQueries) {
          const QueryRange<int> queries = mask.QueriesFrom(first, kQueries);
          EXPECT_EQ(queries.begin, first);
          EXPECT_EQ(queries.end, std::min(first + kQueries, s));
          const TileRange<int> tiles = TilesOf<kKeys>(mask.Keys(queries));
          int last_seen = -1;
          for (int query = first; query < queries.end; ++query) {
            last_seen = std::max(last_seen, mask.Keys(query).end - 1);
          }
          EXPECT_EQ(tiles.begin, 0);
          EXPECT_EQ(tiles.end, last_seen < 0 ? 0 : last_seen / kKeys + 1);
          for (int tile = 0; tile < tiles.end; ++tile) {
            const KeyRange<int> keys = {tile * kKeys, (tile + 1) * kKeys};
            bool all = true;
            for (int key = keys.begin; key < keys.end; ++key) {
              for (int query = first; query < queries.end; ++query) {
                all &= key < mask.Keys(query).end;
              }
            }
            EXPECT_EQ(mask.NeedsMask(queries, keys), !all);
          }
        }
      }
    }
  }
}

TEST(KeyRange, HasNoSizeIfItEndsBeforeItBegins) {
  EXPECT_EQ((KeyRange<int>{0, 3}).size(), 3);
  EXPECT_EQ((KeyRange<int>{0, -2}).size(), 0);
}

TEST(TilesOf, HoldTheFirstAndTheLastRow) {
  const auto tiles = TilesOf<4>(QueryRange<int>{7, 17});
  EXPECT_EQ(tiles.begin, 1);
  EXPECT_EQ(tiles.end, 5);
}

}  // namespace
}  // namespace tessera
