#ifndef TRAINERS_MEMORY_PLAN_H_
#define TRAINERS_MEMORY_PLAN_H_

#include <cstdint>

#include "absl/types/span.h"
#include "attention_backends/attention_backend.h"
#include "framework/autograd/recompute_config.pb.h"
#include "framework/observe/memory_report.h"
#include "framework/precision/precision_policy.h"
#include "models/model_shape.h"

namespace tessera {

struct MemoryPlanInput {
  ModelShape shape;
  absl::Span<const ParameterBlockSpec> parameters;  // in execution order
  const PrecisionPolicy* precision = nullptr;
  const AttentionBackend* backend = nullptr;
  AttentionProblem attention;  // of one micro-batch
  RecomputeConfig recompute;
  int64_t micro_batches = 1;
};

// Device bytes of a training step by category, before anything is allocated.
//
// Parameters, shadow, gradients and optimizer state are exact but for the
// store's alignment.
// Activations are what the forward pass of one micro-batch holds for backward:
// per layer the residual twice, both norms' results, the fused projection, what
// the attention backend says it saves, W_13 y and the SwiGLU; of a recomputed
// segment only its input, plus one such segment alive while it is recomputed.
// With a single micro-batch only what does not fit into the gradient buffer
// counts (framework/params/activation_arena.h). Of frozen parameters before the
// first trained one only the last's.
// Workspace is the largest of the transient sets of backward: the head with its
// logits' gradient, a feed-forward, an attention. Where nothing is trained, of
// the forward pass up to one token's logits.
MemoryReport PlanMemory(const MemoryPlanInput& input);

}  // namespace tessera

#endif  // TRAINERS_MEMORY_PLAN_H_
