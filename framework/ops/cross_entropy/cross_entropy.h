#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_

#include "framework/base/ignored_target.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"
#include "framework/program/program.h"

namespace tessera {

// The sum over tokens of the loss that cross_entropy_math.h defines: without
// options, -log softmax(logits)[target], in nats. It is a sum, because the step
// divides by the number of valid tokens of all ranks and micro-batches.
//   logits: [..., V], any float dtype, before the soft cap
//   targets: [...], int64 in [0, V) or kIgnoredTarget
//   returns a scalar
// Arithmetic and result have the dtype of OpClass::kLoss. Backward reads
// logits, targets and the rows' log-sum-exp. The gradient has the logits' dtype
// and may overwrite them.
Value CrossEntropySum(ProgramBuilder& b, Value logits, Value targets,
                      const CrossEntropyOptions& options = {});

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_
