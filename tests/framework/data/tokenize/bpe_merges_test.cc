#include "framework/data/tokenize/bpe_merges.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::array<int32_t, 256> Identity() {
  std::array<int32_t, 256> ids;
  for (int byte = 0; byte < 256; ++byte) ids[byte] = byte;
  return ids;
}

std::vector<int32_t> Encode(const BpeMerges& merges, absl::string_view text,
                            BpeMerges::State* state) {
  std::vector<int32_t> ids;
  merges.Encode(text, state, &ids);
  return ids;
}

// The definition: the earliest merge at its leftmost place, until there is
// none.
std::vector<int32_t> Naive(const std::vector<BpeMerge>& merges,
                           absl::string_view text) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) {
    ranks[{merges[i].left, merges[i].right}] = i;
  }
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best = merges.size(), place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == merges.size()) return ids;
    ids[place] = merges[best].merged;
    ids.erase(ids.begin() + place + 1);
  }
}

TEST(BpeMergesTest, AgreesWithTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    // Merges of random tokens of the letters a to d, in no order.
    std::vector<BpeMerge> merges;
    std::vector<int32_t> tokens = {'a', 'b', 'c', 'd'};
    for (int i = 0; i < 40; ++i) {
      merges.push_back({tokens[random() % tokens.size()],
                        tokens[random() % tokens.size()], 256 + i});
      tokens.push_back(256 + i);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const BpeMerges encoder(Identity(), merges);
    BpeMerges::State state;
    for (const size_t size : {0, 1, 2, 5, 30, 99, 100, 101, 300}) {
      std::string text;
      while (text.size() < size) text += static_cast<char>('a' + random() % 4);
      EXPECT_EQ(Encode(encoder, text, &state), Naive(merges, text)) << text;
    }
  }
}

TEST(BpeMergesTest, EncodesALongRepetitionInTime) {
  std::vector<BpeMerge> merges;
  for (int i = 0; i < 15; ++i) {
    const int32_t token = i == 0 ? 'a' : 255 + i;
    merges.push_back({token, token, 256 + i});
  }
  BpeMerges::State state;
  const std::vector<int32_t> ids =
      Encode(BpeMerges(Identity(), merges), std::string(1 << 20, 'a'), &state);
  EXPECT_EQ(ids, std::vector<int32_t>(32, 270));
}

TEST(BpeMergesTest, WorksWithoutMerges) {
  BpeMerges::State state;
  EXPECT_EQ(Encode(BpeMerges(Identity(), {}), "ab\xff", &state),
            (std::vector<int32_t>{'a', 'b', 255}));
}

}  // namespace
}  // namespace tessera
