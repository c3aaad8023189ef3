#ifndef FRAMEWORK_OPS_EMBEDDING_EMBEDDING_KERNELS_H_
#define FRAMEWORK_OPS_EMBEDDING_EMBEDDING_KERNELS_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "framework/program/op.h"

namespace tessera {

// The sum over tokens of an embedding's backward pass (embedding.h). In a CUDA
// build only.
//   ids: [N], int64 in [0, V); dx: [N, C] and the table's gradient: [V, C], in
//   FP32, FP16 or BF16, contiguous.
void EmbeddingBackwardOnCuda(const at::Tensor& ids, const at::Tensor& dx,
                             const GradTarget& table);

// Its workspace for N tokens and a table of V rows, in int32: two for each id
// and each token, and one.
inline int64_t EmbeddingBackwardWorkspace(int64_t tokens, int64_t vocab) {
  return 2 * (tokens + vocab) + 1;
}

}  // namespace tessera

#endif  // FRAMEWORK_OPS_EMBEDDING_EMBEDDING_KERNELS_H_
