#ifndef ATTENTION_BACKENDS_CACHED_ATTENTION_H_
#define ATTENTION_BACKENDS_CACHED_ATTENTION_H_

#include <cstdint>

#include "attention_backends/attention_backend.h"
#include "attention_backends/attention_op.h"
#include "framework/program/program.h"

namespace tessera {

// The keys and values of a layer's tokens so far, so that a token that follows
// them need not compute them again. A cache is an input of a program whose
// memory the ops below write: [T, 2, B G, D], qkv's dtype. Row t has token t's
// keys, then its values. Rows of no token yet are finite.
TensorType CacheType(int64_t rows, const AttentionProblem& problem);

// Writes the keys and values of all tokens of a fused projection, [B, S, H +
// 2 G, D] with S <= T, into the first rows. Returns `qkv`: what reads the
// result runs after it.
Value FillCache(ProgramBuilder& b, Value qkv, Value cache,
                const AttentionProblem& problem);

// Attention of one token of each sequence, at the same position of all.
//   qkv: [B, 1, H + 2 G, D]; heads ordered Q, K, V
//   position: [B, 1], int64, below T
//   returns o: [B, 1, H, D], qkv's dtype
// Writes the token's keys and values into their row, then attends to that row
// and those before it that the mask keeps. S is 1 and T the cache's rows.
// No backend is used: a kernel of its own computes on a GPU, and ATen on a CPU,
// in FP64, and for head dims above 256 or no multiple of 8.
Value CachedAttention(ProgramBuilder& b, Value qkv, Value cache, Value position,
                      const SelfAttentionSpec& spec);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_CACHED_ATTENTION_H_
