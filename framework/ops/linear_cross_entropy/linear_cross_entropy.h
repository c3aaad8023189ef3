#ifndef FRAMEWORK_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_
#define FRAMEWORK_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_

#include <cstdint>
#include <memory>

#include "framework/ops/cross_entropy/cross_entropy_math.h"
#include "framework/ops/kernel_choice.h"
#include "framework/ops/linear/linear.h"
#include "framework/program/op.h"

namespace tessera {

// The size of the chunks of LinearCrossEntropy().
struct LogitChunks {
  int64_t bytes = int64_t{128} << 20;
  // Products of few rows are slow.
  int64_t min_rows = 1024;
  // Each chunk adds its part of dW to the gradient buffer and rounds it to its
  // dtype. Eight instead of one made a step with 128,256 words 3 % slower.
  int64_t max_chunks = 4;

  // Rows of each chunk but the last, for `rows` rows of `row_bytes`.
  int64_t RowsOfChunk(int64_t rows, int64_t row_bytes) const;
};

// A language model's head and its loss in one op,
//   CrossEntropySum(Linear(x, W), targets, options),
// a chunk of rows at a time, so that the logits of the whole batch never exist.
// Forward and backward are one run in training: a chunk's logits become their
// gradient in place and are never computed again (Hsu et al., "Liger Kernel",
// 2024, section 3.2).
//   x: [..., C]; W: [V, C]; targets: [...], int64 in [0, V) or kIgnoredTarget
//   returns a scalar
//
// `logits`: dtype of the logits. `kernels`: those of the cross entropy.
std::unique_ptr<Op> LinearCrossEntropy(const LinearProducts& products,
                                       at::ScalarType logits,
                                       KernelKind kernels,
                                       const CrossEntropyOptions& options,
                                       const LogitChunks& chunks = {});

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_
