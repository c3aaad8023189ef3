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

// No limit on that side of an AttentionMask.
inline constexpr int kAllKeys = -1;

// The mask of S queries over T keys: a band around the diagonal, of which a
// query sees what lies in its own document. Query i stands at key i + T - S, so
// that the last query stands at the last key, and sees that key, `before` keys
// before it and `after` keys after it.
template <typename Int>
struct AttentionMask {
  Int s, t;
  Int before, after;  // MaskSpec
  // For each token of a batch, the first token of its document and the token
  // after the last one, counted from the start of its sequence. The tokens of
  // this mask's sequence begin at index `first_token`. S = T. Null if each
  // sequence is one document. (Pointers to the sequence's own part would take
  // registers, and the FP32 kernels have none to spare.)
  const int* document_begin = nullptr;
  const int* document_end = nullptr;
  Int first_token = 0;

  // The keys that `query` sees, which is below S. May end below 0 and, if
  // queries see keys after theirs, beyond T.
  TESSERA_HOST_DEVICE KeyRange<Int> Keys(Int query) const {
    const KeyRange<Int> band = {
        before == kAllKeys ? 0 : Max(0, FirstKey(query)),
        after == kAllKeys ? t : query + t - s + after + 1};
    if (document_begin == nullptr) return band;
    const Int token = first_token + Min(query, s - 1);
    // The query's own key is in its document: nothing to read.
    const bool ends_at_query = after == 0;
    return {Max(band.begin, document_begin[token]),
            ends_at_query ? band.end : Min(band.end, document_end[token])};
  }

  // The first key of the band that `query` sees, if `before` has a limit; below
  // 0 if it sees all that exist before its own.
  TESSERA_HOST_DEVICE Int FirstKey(Int query) const {
    return query + t - s - before;
  }

  // The keys that a tile's row sees, not beyond T. The row may lie beyond the
  // last query and then sees keys as if it were one.
  TESSERA_HOST_DEVICE KeyRange<Int> KeysOfRow(Int row) const {
    return {Keys(row).begin, Min(t, Keys(row).end)};
  }

  // The keys that at least one of the rows `queries` sees, of which there are
  // one or more.
  TESSERA_HOST_DEVICE KeyRange<Int> Keys(QueryRange<Int> queries) const {
    return {Keys(queries.begin).begin, Max(0, KeysOfRow(queries.end - 1).end)};
  }

  // The first query of the band that sees `key`, which is below T, if `after`
  // has a limit; 0 or less if all before it do.
  TESSERA_HOST_DEVICE Int FirstQuery(Int key) const {
    return key - after - (t - s);
  }

  // The queries that see `key`. A tile's row beyond the last key is seen as if
  // it were one.
  TESSERA_HOST_DEVICE QueryRange<Int> Queries(Int key) const {
    const QueryRange<Int> band = {
        after == kAllKeys ? 0 : Max(0, FirstQuery(key)),
        before == kAllKeys ? s : Min(s, key + before - (t - s) + 1)};
    if (document_begin == nullptr) return band;
    const Int token = first_token + Min(key, t - 1);
    const bool begins_at_key = after == 0;
    return {begins_at_key ? band.begin : Max(band.begin, document_begin[token]),
            Min(band.end, document_end[token])};
  }

  // The queries that see at least one of `keys`, which are below T.
  TESSERA_HOST_DEVICE QueryRange<Int> Queries(KeyRange<Int> keys) const {
    return {Queries(keys.begin).begin, Max(0, Queries(keys.end - 1).end)};
  }

  // The visible columns of a row of a tile of scores: if rows are queries, the
  // keys that the query sees; if rows are keys, the queries that see the key.
  // The row may lie beyond the last one.
  template <bool kRowsAreKeys>
  TESSERA_HOST_DEVICE KeyRange<Int> VisibleColumns(Int row) const {
    if constexpr (!kRowsAreKeys) return KeysOfRow(row);
    const QueryRange<Int> queries = Queries(row);
    return {queries.begin, row < t ? queries.end : 0};
  }

  // The queries and keys of a tile of `rows` rows, whose first is `first`, that
  // exist.
  TESSERA_HOST_DEVICE QueryRange<Int> QueriesFrom(Int first, Int rows) const {
    return {first, Min(first + rows, s)};
  }
  TESSERA_HOST_DEVICE KeyRange<Int> KeysFrom(Int first, Int rows) const {
    return {first, Min(first + rows, t)};
  }

  // Whether a query of `queries` does not see a key of `keys`.
  TESSERA_HOST_DEVICE bool NeedsMask(QueryRange<Int> queries,
                                     KeyRange<Int> keys) const {
    return KeysOfRow(queries.begin).end < keys.end ||
           Keys(queries.end - 1).begin > keys.begin;
  }

 private:
  static TESSERA_HOST_DEVICE Int Min(Int a, Int b) { return a < b ? a : b; }
  static TESSERA_HOST_DEVICE Int Max(Int a, Int b) { return a > b ? a : b; }
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_KEY_RANGE_H_
