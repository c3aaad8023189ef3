#ifndef FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_LAUNCH_H_
#define FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"
#include "framework/ops/cross_entropy/cross_entropy_math.h"

namespace tessera {

struct CrossEntropyParams {
  FloatType type = FloatType::kFloat;
  int64_t rows = 0;
  int64_t vocab = 0;
  // Elements from one row of logits, and of dlogits, to the next; >= V.
  int64_t logits_stride = 0, dlogits_stride = 0;
  CrossEntropyOptions options;
  const void* logits = nullptr;      // [rows, V]
  const int64_t* targets = nullptr;  // [rows]; -1: ignored
  // [2, rows]; forward writes, backward reads: the row's logsumexp in FP32, and
  // its rounding error.
  float* lse = nullptr;
  float* losses = nullptr;       // [rows]; forward writes
  const float* dloss = nullptr;  // one element
  // [rows, V]; backward writes, and may write what is between rows.
  void* dlogits = nullptr;
};
cudaError_t LaunchCrossEntropyForward(const CrossEntropyParams& params,
                                      cudaStream_t stream);
cudaError_t LaunchCrossEntropyBackward(const CrossEntropyParams& params,
                                       cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_CROSS_ENTROPY_CROSS_ENTROPY_LAUNCH_H_
