#ifndef FRAMEWORK_DATA_TOKENIZE_BPE_MERGES_H_
#define FRAMEWORK_DATA_TOKENIZE_BPE_MERGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// A merge of byte-pair encoding: the tokens `left` and `right`, next to each
// other, become `merged`. The earlier in the list, the earlier it is done.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// Byte-pair encoding (Sennrich, Haddow and Birch, ACL 2016) of a pre-token:
// starts with its bytes, and while any merge applies, does the earliest merge
// of the list, at its leftmost place.
class BpeMerges {
 public:
  // Memory for encoding, one for each thread.
  class State {
   private:
    friend class BpeMerges;
    // The tokens so far. Each field is an array, so that the search for the
    // smallest rank reads nothing else.
    std::vector<int32_t> ids_;
    std::vector<uint32_t> ranks_;  // of the merge with the next token; kNone
    std::vector<int32_t> merged_;  // the result of that merge
    std::vector<int32_t> previous_, next_;  // for EncodeLong(); -1: none
    std::vector<std::pair<uint32_t, int32_t>> heap_;  // rank and place
  };

  // `merges` has less than 2^32 - 1 elements. If a pair is there twice, the
  // later merge counts.
  BpeMerges(const std::array<int32_t, 256>& byte_ids,
            const std::vector<BpeMerge>& merges);

  // Appends the ids of `pre_token`, which has less than 2^31 bytes.
  void Encode(absl::string_view pre_token, State* state,
              std::vector<int32_t>* ids) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Entry {
    uint64_t pair = 0;
    uint32_t rank = kNone;  // kNone: an empty entry
    int32_t merged = 0;
  };

  // The entry of a pair; one with the rank kNone if it is not in the table.
  const Entry& Find(uint64_t pair) const;
  // Sets the merge of the token at `place`, which is followed by that at
  // `next`.
  void SetMerge(size_t place, size_t next, State* state) const;
  void EncodeShort(State* state, std::vector<int32_t>* ids) const;
  void EncodeLong(State* state, std::vector<int32_t>* ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing; its size is a power of two
  int shift_;                 // from a hash of 64 bits to an index
  // Whether a pair in the table has a hash that begins with these bits. Most
  // pairs do not merge, and the filter is in the processor's cache more often
  // than the table, which is 16 times as large.
  std::vector<bool> filter_;
};

}  // namespace tessera

#endif  // FRAMEWORK_DATA_TOKENIZE_BPE_MERGES_H_
