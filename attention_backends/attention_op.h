#ifndef ATTENTION_BACKENDS_ATTENTION_OP_H_
#define ATTENTION_BACKENDS_ATTENTION_OP_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// How a fused projection splits into heads, and what to do with them.
struct SelfAttentionSpec {
  int64_t query_heads = 0, kv_heads = 0;
  double scale = 1;
  MaskKind mask = MaskKind::kCausal;
  bool deterministic = false;                 // as in AttentionArgs
  const AttentionBackend* backend = nullptr;  // outlives the graph
  PhaseObserver* phases = nullptr;
};

// Self-attention as one autograd node over the fused projection.
//   qkv: [B, S, H + 2 G, D], contiguous; heads ordered Q, K, V
//   returns o: [B, S, H, D], contiguous, qkv's dtype
// Q, K, V are slices of qkv and the gradients are written as slices of one
// [B, S, H + 2 G, D] buffer: nothing is split or concatenated.
at::Tensor SelfAttention(const at::Tensor& qkv, const SelfAttentionSpec& spec);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_OP_H_
