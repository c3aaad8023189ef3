#ifndef FRAMEWORK_OPS_QK_NORM_QK_NORM_H_
#define FRAMEWORK_OPS_QK_NORM_QK_NORM_H_

#include <cstdint>

#include "framework/program/program.h"

namespace tessera {

// The gains of QkNorm(). Each is a multiple of D wide, at most as wide as a
// token's queries or keys.
struct QkGains {
  Weight queries, keys;
};

// QK-norm (Henry et al., "Query-Key Normalization for Transformers", 2020), by
// RMSNorm (rms_norm.h), as in Qwen 3 and OLMo 2. V is unchanged.
//   qkv: [B, S, H + 2G, D]; heads in the order Q, K, V; G is `kv_heads`
//   gains: read from their masters. Their widths decide what is normalised:
//     [D] and [D]      the vector of each head separately; all heads use the
//                      same gain (Qwen 3)
//     [H D] and [G D]  a token's queries, and its keys (OLMo 2)
//   returns y, of qkv's type; in place if qkv's memory is free
// Statistics have the dtype of OpClass::kNormStatistics. Backward reads qkv,
// the gains and r, a scalar per normalised row.
Value QkNorm(ProgramBuilder& b, Value qkv, const QkGains& gains,
             int64_t kv_heads, double eps);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_QK_NORM_QK_NORM_H_
