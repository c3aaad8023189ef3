#include "attention_backends/key_range.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Mask = AttentionMask<int>;

// The tokens of other sequences before that of the mask.
constexpr int kTokensBefore = 3;

// The bounds of documents of some lengths, repeated until they fill `tokens`.
struct Documents {
  std::vector<int> begin, end;
};
const Documents& Packed(int tokens, const std::vector<int>& lengths) {
  static auto& all = *new std::map<std::pair<int, std::vector<int>>, Documents>;
  Documents& packed = all[{tokens, lengths}];
  if (!packed.begin.empty()) return packed;
  packed.begin.resize(kTokensBefore, 1);
  packed.end.resize(kTokensBefore, 2);
  for (int i = 0, first = 0; first < tokens; ++i) {
    const int length = std::min(lengths[i % lengths.size()], tokens - first);
    packed.begin.insert(packed.begin.end(), length, first);
    packed.end.insert(packed.end.end(), length, first + length);
    first += length;
  }
  return packed;
}

// Each combination of limits before and after a query's own key, with and
// without documents.
std::vector<Mask> Masks(int s, int t) {
  std::vector<Mask> masks;
  for (const int before : {kAllKeys, 0, 1, 6, 50}) {
    for (const int after : {kAllKeys, 0, 1, 6, 50}) {
      masks.push_back({s, t, before, after});
      if (s != t) continue;
      for (const std::vector<int>& lengths :
           {std::vector<int>{1, 5, 2, 11}, std::vector<int>{8, 16, 4, 12}}) {
        const Documents& packed = Packed(s, lengths);
        masks.push_back({s, t, before, after, packed.begin.data(),
                         packed.end.data(), kTokensBefore});
      }
    }
  }
  return masks;
}

bool Sees(const Mask& mask, int query, int key) {
  if (key >= mask.t) return false;
  const int at = query + mask.t - mask.s;
  if (mask.document_begin != nullptr) {
    const int* const document = mask.document_begin + mask.first_token;
    if (document[query] != document[key]) return false;
  }
  return (mask.before == kAllKeys || key >= at - mask.before) &&
         (mask.after == kAllKeys || key <= at + mask.after);
}

TEST(AttentionMask, MatchesTheDefinition) {
  for (const int s : {1, 5, 17, 40}) {
    for (const int t : {1, 5, 17, 40}) {
      for (const Mask& mask : Masks(s, t)) {
        for (int query = 0; query < s; ++query) {
          for (int key = 0; key < t; ++key) {
            const bool sees = Sees(mask, query, key);
            const KeyRange<int> keys = mask.Keys(query);
            EXPECT_EQ(keys.begin <= key && key < keys.end, sees);
            const KeyRange<int> of_row = mask.KeysOfRow(query);
            EXPECT_EQ(of_row.begin <= key && key < of_row.end, sees);
            EXPECT_LE(of_row.end, t);
            const QueryRange<int> queries = mask.Queries(key);
            EXPECT_EQ(queries.begin <= query && query < queries.end, sees);
          }
        }
        EXPECT_LE(mask.KeysOfRow(s + 3).end, t);
      }
    }
  }
}

// The smallest range that holds what `holds` is true for; {0, 0} for nothing.
KeyRange<int> Hull(int size, const std::function<bool(int)>& holds) {
  KeyRange<int> hull = {size, 0};
  for (int i = 0; i < size; ++i) {
    if (!holds(i)) continue;
    hull = {std::min(hull.begin, i), i + 1};
  }
  return hull.end == 0 ? KeyRange<int>{0, 0} : hull;
}

TEST(AttentionMask, RangesOfTilesAreAsSmallAsPossible) {
  constexpr int kQueries = 8, kKeys = 4;
  for (const int s : {1, 7, 8, 9, 30}) {
    for (const int t : {1, 7, 8, 9, 30}) {
      for (const Mask& mask : Masks(s, t)) {
        for (int first = 0; first < s; first += kQueries) {
          const QueryRange<int> queries = mask.QueriesFrom(first, kQueries);
          EXPECT_EQ(queries.end, std::min(first + kQueries, s));
          const KeyRange<int> seen = Hull(t, [&](int key) {
            return Hull(queries.size(), [&](int i) {
                     return Sees(mask, first + i, key);
                   }).size() > 0;
          });
          const KeyRange<int> keys = mask.Keys(queries);
          EXPECT_EQ(keys.size(), seen.size());
          if (seen.size() > 0) {
            EXPECT_EQ(keys.begin, seen.begin);
          }
        }
        for (int first = 0; first < t; first += kKeys) {
          const KeyRange<int> keys = mask.KeysFrom(first, kKeys);
          EXPECT_EQ(keys.end, std::min(first + kKeys, t));
          const KeyRange<int> seen_by = Hull(s, [&](int query) {
            return Hull(keys.size(), [&](int i) {
                     return Sees(mask, query, first + i);
                   }).size() > 0;
          });
          const QueryRange<int> queries = mask.Queries(keys);
          EXPECT_EQ(queries.size(), seen_by.size());
          if (seen_by.size() > 0) {
            EXPECT_EQ(queries.begin, seen_by.begin);
          }
        }
      }
    }
  }
}

TEST(AttentionMask, TilesAreMaskedIfNeeded) {
  constexpr int kQueries = 8, kKeys = 4;
  for (const int s : {1, 7, 8, 9, 30}) {
    for (const int t : {1, 7, 8, 9, 30}) {
      for (const Mask& mask : Masks(s, t)) {
        for (int first = 0; first < s; first += kQueries) {
          const QueryRange<int> queries = mask.QueriesFrom(first, kQueries);
          for (int key = 0; key < t; key += kKeys) {
            bool all = true;
            for (int i = 0; i < queries.size() * kKeys; ++i) {
              all &= Sees(mask, first + i / kKeys, key + i % kKeys);
            }
            EXPECT_EQ(mask.NeedsMask(queries, {key, key + kKeys}), !all);
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
