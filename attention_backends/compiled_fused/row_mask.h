#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_ROW_MASK_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_ROW_MASK_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention_backends/key_range.h"

namespace tessera {
namespace fused {

// Which scores of a query are visible, and how much of its row the products
// read.
//
// Under a causal mask, `band_rows` successive queries form a band, whose
// products stop after the last key that one of these queries sees. Scores after
// that key are neither written nor read; between a query's last key and the
// band's, P and dS are zero. If queries > keys, one band holds every query.
struct RowMask {
  int64_t queries = 0, keys = 0;  // S, T
  bool causal = false;            // aligned at the bottom right
  int64_t band_rows = 0;          // S: a single band

  AttentionMask<int64_t> mask() const {
    return {queries, keys, kAllKeys, causal ? 0 : kAllKeys};
  }

  // The number of leading keys that query i sees.
  int64_t Visible(int64_t i) const { return mask().Keys(i).size(); }
  // The number of leading keys that some query of i's band sees; all keys if
  // there is a single band.
  int64_t Written(int64_t i) const {
    if (bands() == 1) return keys;
    return mask().Keys(QueryRange<int64_t>{i, BandEnd(i / band_rows)}).size();
  }

  int64_t bands() const {
    return causal ? (queries + band_rows - 1) / band_rows : 1;
  }
  // A band holds queries [BandBegin, BandEnd).
  int64_t BandBegin(int64_t band) const { return band * band_rows; }
  int64_t BandEnd(int64_t band) const {
    return bands() == 1 ? queries : std::min(queries, (band + 1) * band_rows);
  }

  friend bool operator==(const RowMask&, const RowMask&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const RowMask& m) {
    return H::combine(std::move(h), m.queries, m.keys, m.causal, m.band_rows);
  }
};

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_ROW_MASK_H_
