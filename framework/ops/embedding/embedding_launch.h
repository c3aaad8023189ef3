#ifndef FRAMEWORK_OPS_EMBEDDING_EMBEDDING_LAUNCH_H_
#define FRAMEWORK_OPS_EMBEDDING_EMBEDDING_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

struct EmbeddingBackwardParams {
  int64_t tokens = 0;            // N, below 2^31
  int64_t vocab = 0;             // V
  int64_t width = 0;             // C
  const int64_t* ids = nullptr;  // [N], in [0, V)
  FloatType dx_type = FloatType::kFloat;
  const void* dx = nullptr;  // [N, C]
  FloatType grad_type = FloatType::kFloat;
  bool accumulate = false;   // += instead of =
  void* grad = nullptr;      // [V, C]
  int* workspace = nullptr;  // [EmbeddingBackwardWorkspace(N, V)]
};
// Writes each row of grad once, with the sum in FP32 of the rows of dx that
// have its id, in an order that depends on the ids alone.
cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardParams& params,
                                    cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_EMBEDDING_EMBEDDING_LAUNCH_H_
