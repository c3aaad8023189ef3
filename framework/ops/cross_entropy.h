#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_H_

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace tessera {

// A target that takes no part in the loss (padding at the end of an epoch).
inline constexpr int64_t kIgnoredTarget = -1;

// Sum over tokens of -log softmax(logits)[target], in nats. A sum, not a mean:
// the step divides by the valid tokens of all ranks and micro-batches.
//   logits: [..., V], any float dtype; read in FP32 (FP64 for FP64)
//   targets: [...], int64 in [0, V) or kIgnoredTarget
//   returns a scalar, FP32 (FP64 for FP64 logits)
// Backward: (softmax(logits) - onehot(target)) * d(loss), in the logits' dtype,
// in the logits' own memory when nobody else holds them by then.
at::Tensor CrossEntropySum(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_H_
