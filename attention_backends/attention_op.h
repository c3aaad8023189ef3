#ifndef ATTENTION_BACKENDS_ATTENTION_OP_H_
#define ATTENTION_BACKENDS_ATTENTION_OP_H_

#include <optional>

#include "attention_backends/attention_backend.h"
#include "framework/program/program.h"

namespace tessera {

// How SelfAttention() splits a fused projection into heads and computes.
struct SelfAttentionSpec {
  double scale = 1;
  const AttentionBackend* backend = nullptr;  // outlives the program
  // Sizes, mask and whether backward follows; supported by the backend.
  AttentionProblem problem;
  // AttentionArgs::documents; present if problem.documents.
  std::optional<Value> documents;
  // The logits of the heads' sinks, [H]; present if problem.sinks.
  std::optional<Weight> sinks;
};

// Self-attention over a fused projection.
//   qkv: [B, S, H + 2 G, D]; heads ordered Q, K, V
//   returns o: [B, S, H, D], qkv's dtype
// Q, K, V are slices of qkv and the gradients are written as slices of one
// [B, S, H + 2 G, D] buffer: nothing is split or concatenated. Backward reads
// qkv, o and what the backend holds (AttentionMemory).
Value SelfAttention(ProgramBuilder& b, Value qkv,
                    const SelfAttentionSpec& spec);

// What a SelfAttention() op computes; null for other ops.
const AttentionProblem* AttentionProblemOf(const Op& op);
// The pairs of a query and a key, in each head of a sequence, that its cost
// counts: those that the mask keeps in a single document.
double VisiblePairs(const AttentionProblem& problem);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_OP_H_
