#ifndef BENCH_MEASURE_ALLOCATION_FIGURES_H_
#define BENCH_MEASURE_ALLOCATION_FIGURES_H_

#include <cstdint>

#include "framework/observe/memory_record.h"
#include "nlohmann/json.hpp"
#include "trainers/plan/run_plan.h"

namespace tessera {

// What was allocated in a step or a forward pass whose record has all of its
// allocations. Sizes in MiB:
//   parts     the largest single allocation of each part: of the forward pass,
//             by the op that asked: embedding, norm, residual, both in one op
//             as residual_and_norm, attention_in (up to Q, K, V), scores,
//             softmax, attention_out, ffn, logits; by category:
//             activation_gradients; buffers as a whole: parameters, shadow,
//             gradients, optimizer (the first moments, `moment_bytes`). Absent
//             if there is none: scores, if the backend has no such tensor.
//   largest   [{mib, count, category, from, to, at_ms, ms}], ten, largest
//             first: allocations of one op in all blocks are one element, whose
//             times are of the first
nlohmann::ordered_json AllocationFigures(const MemoryRecord& record,
                                         const RunPlan& plan,
                                         int64_t moment_bytes);

// What a step kept from its forward for its backward pass, in MiB, next to the
// plan's figures:
//   mib, planned_mib                of all ops
//   block_mib, planned_block_mib    mean over the blocks
//   ops    [{op, mib, planned_mib}], of the op that allocated: "ffn/w13", mean
//          over the blocks. An op that writes in place keeps what another
//          allocated.
// Activations in the flat gradient buffer (lifetime.h) are in neither.
nlohmann::ordered_json SavedFigures(const MemoryRecord& record,
                                    const RunPlan& plan);

// One tensor of the residual stream: {mib, formula_mib}, the embedding's
// allocation and batch * context * d_model * bytes of an element.
nlohmann::ordered_json ResidualFigures(const MemoryRecord& record,
                                       const RunPlan& plan);

}  // namespace tessera

#endif  // BENCH_MEASURE_ALLOCATION_FIGURES_H_
