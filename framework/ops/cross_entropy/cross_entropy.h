#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_

#include "framework/base/ignored_target.h"
#include "framework/program/program.h"

namespace tessera {

// Sum over tokens of -log softmax(logits)[target], in nats. It is a sum,
// because the step divides by the number of valid tokens of all ranks and
// micro-batches.
//   logits: [..., V], any float dtype
//   targets: [...], int64 in [0, V) or kIgnoredTarget
//   returns a scalar
// Arithmetic and result have the dtype of OpClass::kLoss. Backward reads
// logits, targets and the rows' log-sum-exp:
//   d(logits) = (softmax(logits) - onehot(target)) * d(loss),
// in the logits' dtype. It may overwrite the logits.
Value CrossEntropySum(ProgramBuilder& b, Value logits, Value targets);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_H_
