#include "framework/data/tokenize/bpe_merges.h"

#include <algorithm>
#include <functional>

namespace tessera {
namespace {

// Up to this length, looking at every symbol for the earliest merge is faster
// than a heap.
constexpr size_t kShortBytes = 100;

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
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    Entry& entry = const_cast<Entry&>(Find(merge.left, merge.right));
    entry = {.pair = Pair(merge.left, merge.right),
             .rank = static_cast<uint32_t>(rank),
             .merged = merge.merged};
  }
}

const BpeMerges::Entry& BpeMerges::Find(int32_t left, int32_t right) const {
  const uint64_t pair = Pair(left, right);
  for (uint64_t i = Hash(pair) >> shift_;; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i].rank == kNone || table_[i].pair == pair) return table_[i];
  }
}

void BpeMerges::Encode(absl::string_view pre_token, State* state,
                       std::vector<int32_t>* ids) const {
  if (pre_token.empty()) return;
  std::vector<State::Symbol>& symbols = state->symbols_;
  symbols.resize(pre_token.size());
  for (size_t i = 0; i < pre_token.size(); ++i) {
    symbols[i].id = byte_ids_[static_cast<uint8_t>(pre_token[i])];
  }
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    symbols[i].rank = Find(symbols[i].id, symbols[i + 1].id).rank;
  }
  symbols.back().rank = kNone;
  if (pre_token.size() <= kShortBytes) return EncodeShort(state, ids);
  EncodeLong(state, ids);
}

void BpeMerges::EncodeShort(State* state, std::vector<int32_t>* ids) const {
  std::vector<State::Symbol>& symbols = state->symbols_;
  while (true) {
    const auto earliest =
        std::min_element(symbols.begin(), symbols.end(),
                         [](const State::Symbol& a, const State::Symbol& b) {
                           return a.rank < b.rank;
                         });
    if (earliest->rank == kNone) break;
    const auto next = earliest + 1;
    earliest->id = Find(earliest->id, next->id).merged;
    symbols.erase(next);
    const bool is_last = earliest + 1 == symbols.end();
    earliest->rank =
        is_last ? kNone : Find(earliest->id, (earliest + 1)->id).rank;
    if (earliest == symbols.begin()) continue;
    (earliest - 1)->rank = Find((earliest - 1)->id, earliest->id).rank;
  }
  for (const State::Symbol& symbol : symbols) ids->push_back(symbol.id);
}

void BpeMerges::EncodeLong(State* state, std::vector<int32_t>* ids) const {
  std::vector<State::Symbol>& symbols = state->symbols_;
  auto& heap = state->heap_;
  heap.clear();
  const auto last = static_cast<int32_t>(symbols.size()) - 1;
  for (int32_t i = 0; i <= last; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i < last ? i + 1 : -1;
    if (symbols[i].rank != kNone) heap.push_back({symbols[i].rank, i});
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update_rank = [&](int32_t i) {
    const int32_t next = symbols[i].next;
    symbols[i].rank =
        next < 0 ? kNone : Find(symbols[i].id, symbols[next].id).rank;
    if (symbols[i].rank == kNone) return;
    heap.push_back({symbols[i].rank, i});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const auto [rank, i] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (symbols[i].rank != rank) continue;  // has merged since
    const int32_t next = symbols[i].next;
    symbols[i].id = Find(symbols[i].id, symbols[next].id).merged;
    symbols[i].next = symbols[next].next;
    symbols[next].rank = kNone;
    if (symbols[i].next >= 0) symbols[symbols[i].next].previous = i;
    update_rank(i);
    if (symbols[i].previous >= 0) update_rank(symbols[i].previous);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    ids->push_back(symbols[i].id);
  }
}

}  // namespace tessera
