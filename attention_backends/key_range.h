#ifndef ATTENTION_BACKENDS_KEY_RANGE_H_
#define ATTENTION_BACKENDS_KEY_RANGE_H_

#include "framework/cuda/host_device.h"

// Which keys a query sees, for every backend, on the host and in kernels.
// Includes nothing that NVRTC does not have. Int is int in kernels, int64_t on
// the host.

namespace tessera {

// Keys, queries and tiles [begin, end); none if end <= begin.
template <typename Int>
struct KeyRange {
  Int begin, end;
  TESSERA_HOST_DEVICE Int size() const { return end > begin ? end - begin : 0; }
};
template <typename Int>
struct QueryRange {
  Int begin, end;
  TESSERA_HOST_DEVICE Int size() const { return end > begin ? end - begin : 0; }
};
template <typename Int>
struct TileRange {
  Int begin, end;
};

// The number of tiles of `tile` rows that `rows` rows fill, the last in part.
template <typename Int>
TESSERA_HOST_DEVICE constexpr Int CeilDiv(Int rows, Int tile) {
  return (rows + tile - 1) / tile;
}

// The tiles of kTile rows that hold a part of `rows`, a KeyRange or
// QueryRange within the head.
template <auto kTile, template <typename> typename Range, typename Int>
TESSERA_HOST_DEVICE TileRange<Int> TilesOf(const Range<Int>& rows) {
  return {rows.begin / kTile, CeilDiv(rows.end, kTile)};
}

// The mask of S queries over T keys.
template <typename Int>
struct AttentionMask {
  Int s, t;
  bool causal;  // aligned at the bottom right: MaskKind::kCausal

  // The keys that `query` sees, which is below S. May end below 0.
  TESSERA_HOST_DEVICE KeyRange<Int> Keys(Int query) const {
    return {0, causal ? query + t - s + 1 : t};
  }

  // The same for a row of a tile, which may lie beyond the last query and then
  // sees every key.
  TESSERA_HOST_DEVICE KeyRange<Int> KeysOfRow(Int row) const {
    return {0, causal ? Min(t, Keys(row).end) : t};
  }

  // The keys that at least one of the rows `queries` sees, of which there are
  // one or more.
  TESSERA_HOST_DEVICE KeyRange<Int> Keys(QueryRange<Int> queries) const {
    return {0, Max(0, KeysOfRow(queries.end - 1).end)};
  }

  // The first query that sees `key`, which is below T; 0 or less if all do.
  TESSERA_HOST_DEVICE Int FirstQuery(Int key) const {
    return causal ? key - (t - s) : 0;
  }

  // The queries that see `key`, which is below T.
  TESSERA_HOST_DEVICE QueryRange<Int> Queries(Int key) const {
    return {causal ? Max(0, FirstQuery(key)) : 0, s};
  }

  // The queries of a tile of `rows` rows, whose first is `first`, that exist.
  TESSERA_HOST_DEVICE QueryRange<Int> QueriesFrom(Int first, Int rows) const {
    return {first, Min(first + rows, s)};
  }

  // Whether a query of `queries` does not see a key of `keys`.
  TESSERA_HOST_DEVICE bool NeedsMask(QueryRange<Int> queries,
                                     KeyRange<Int> keys) const {
    return KeysOfRow(queries.begin).end < keys.end;
  }

 private:
  static TESSERA_HOST_DEVICE Int Min(Int a, Int b) { return a < b ? a : b; }
  static TESSERA_HOST_DEVICE Int Max(Int a, Int b) { return a > b ? a : b; }
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_KEY_RANGE_H_
