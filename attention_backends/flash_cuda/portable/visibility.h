#ifndef ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_VISIBILITY_H_
#define ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_VISIBILITY_H_

#include <climits>

#include "framework/cuda/host_device.h"

namespace tessera {
namespace flash {
namespace portable {

TESSERA_HOST_DEVICE int Least(int a, int b) { return a < b ? a : b; }
TESSERA_HOST_DEVICE int Most(int a, int b) { return a > b ? a : b; }
TESSERA_HOST_DEVICE int CeilDiv(int a, int b) { return (a + b - 1) / b; }

// Which keys a query sees: all t of them or, causal, those up to i + t - s.
struct Visibility {
  int s, t;
  bool causal;

  // Query i sees the keys below; 0 or less: none.
  TESSERA_HOST_DEVICE int KeyLimit(int query) const {
    return causal ? Least(t, query + t - s + 1) : t;
  }

  // The first query that sees `key`.
  TESSERA_HOST_DEVICE int FirstQuery(int key) const {
    return causal ? Most(0, key + s - t) : 0;
  }

  // The same; beyond every query where there is no such key.
  TESSERA_HOST_DEVICE int FirstQueryOrEnd(int key) const {
    return key < t ? FirstQuery(key) : INT_MAX;
  }

  // Some query from `first_query` on does not see some key below `key_end`.
  TESSERA_HOST_DEVICE bool NeedsMask(int first_query, int key_end) const {
    return key_end > KeyLimit(first_query);
  }

  // Key tiles, from 0 on, of which one of the queries
  // [first_query, first_query + queries) sees a key.
  TESSERA_HOST_DEVICE int KeyTiles(int first_query, int queries,
                                   int tile_keys) const {
    const int last_query = Least(first_query + queries, s) - 1;
    return CeilDiv(Most(0, KeyLimit(last_query)), tile_keys);
  }
};

}  // namespace portable
}  // namespace flash
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_CUDA_PORTABLE_VISIBILITY_H_
