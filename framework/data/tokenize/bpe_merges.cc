#include "framework/data/tokenize/bpe_merges.h"

#include <algorithm>
#include <functional>

namespace tessera {
namespace {

// Up to this length, looking at every symbol for the earliest merge is faster
// than a heap.
constexpr size_t kShortBytes = 100;

// The filter has 2^kFilterBits times as many bits as the table has entries: at
// most one in 16 is set.
constexpr int kFilterBits = 3;

uint64_t Pair(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// Multiplicative hashing (Knuth, TAOCP 3, 6.4): the upper bits are the hash.
uint64_t Hash(uint64_t pair) { return pair * 0x9e3779b97f4a7c15; }

}  // namespace

BpeMerges::BpeMerges(const std::array<int32_t, 256>& byte_ids,
                     const std::vector<BpeMerge>& merges)
    : byte_ids_(byte_ids), shift_(63) {
  // At most half full, so that a search for what is not there is short.
  while ((uint64_t{1} << (64 - shift_)) < 2 * merges.size()) --shift_;
  table_.resize(uint64_t{1} << (64 - shift_));
  filter_.resize(table_.size() << kFilterBits);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    const uint64_t pair = Pair(merge.left, merge.right);
    const_cast<Entry&>(Find(pair)) = {.pair = pair,
                                      .rank = static_cast<uint32_t>(rank),
                                      .merged = merge.merged};
    filter_[Hash(pair) >> (shift_ - kFilterBits)] = true;
  }
}

const BpeMerges::Entry& BpeMerges::Find(uint64_t pair) const {
  for (uint64_t i = Hash(pair) >> shift_;; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i].rank == kNone || table_[i].pair == pair) return table_[i];
  }
}

void BpeMerges::SetMerge(size_t place, size_t next, State* state) const {
  const uint64_t pair = Pair(state->ids_[place], state->ids_[next]);
  state->ranks_[place] = kNone;
  if (!filter_[Hash(pair) >> (shift_ - kFilterBits)]) return;
  const Entry& entry = Find(pair);
  state->ranks_[place] = entry.rank;
  state->merged_[place] = entry.merged;
}

void BpeMerges::Encode(absl::string_view pre_token, State* state,
                       std::vector<int32_t>* ids) const {
  const size_t size = pre_token.size();
  if (size == 0) return;
  state->ids_.resize(size);
  state->ranks_.resize(size);
  state->merged_.resize(size);
  for (size_t i = 0; i < size; ++i) {
    state->ids_[i] = byte_ids_[static_cast<uint8_t>(pre_token[i])];
  }
  for (size_t i = 0; i + 1 < size; ++i) SetMerge(i, i + 1, state);
  state->ranks_.back() = kNone;
  if (size <= kShortBytes) return EncodeShort(state, ids);
  EncodeLong(state, ids);
}

void BpeMerges::EncodeShort(State* state, std::vector<int32_t>* ids) const {
  std::vector<uint32_t>& ranks = state->ranks_;
  size_t size = ranks.size();
  const auto erase = [&](auto& array, size_t place) {
    std::copy(array.begin() + place + 1, array.begin() + size,
              array.begin() + place);
  };
  while (true) {
    uint64_t earliest = ~uint64_t{0};  // rank and place
    for (size_t i = 0; i < size; ++i) {
      earliest = std::min(earliest, uint64_t{ranks[i]} << 32 | i);
    }
    if (earliest >> 32 == kNone) break;
    const size_t place = earliest & 0xffffffff;
    state->ids_[place] = state->merged_[place];
    erase(state->ids_, place + 1);
    erase(state->merged_, place + 1);
    erase(ranks, place + 1);
    --size;
    ranks[place] = kNone;
    if (place + 1 < size) SetMerge(place, place + 1, state);
    if (place > 0) SetMerge(place - 1, place, state);
  }
  ids->insert(ids->end(), state->ids_.begin(), state->ids_.begin() + size);
}

void BpeMerges::EncodeLong(State* state, std::vector<int32_t>* ids) const {
  std::vector<int32_t>& previous = state->previous_;
  std::vector<int32_t>& next = state->next_;
  auto& heap = state->heap_;
  heap.clear();
  const auto size = static_cast<int32_t>(state->ids_.size());
  previous.resize(size);
  next.resize(size);
  for (int32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1 < size ? i + 1 : -1;
    if (state->ranks_[i] != kNone) heap.push_back({state->ranks_[i], i});
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update_rank = [&](int32_t i) {
    state->ranks_[i] = kNone;
    if (next[i] < 0) return;
    SetMerge(i, next[i], state);
    if (state->ranks_[i] == kNone) return;
    heap.push_back({state->ranks_[i], i});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto [rank, i] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (state->ranks_[i] != rank) continue;  // has merged since
    state->ids_[i] = state->merged_[i];
    state->ranks_[next[i]] = kNone;
    next[i] = next[next[i]];
    if (next[i] >= 0) previous[next[i]] = i;
    update_rank(i);
    if (previous[i] >= 0) update_rank(previous[i]);
  }
  for (int32_t i = 0; i >= 0; i = next[i]) ids->push_back(state->ids_[i]);
}

}  // namespace tessera
