#ifndef FRAMEWORK_OPS_QK_NORM_QK_NORM_LAUNCH_H_
#define FRAMEWORK_OPS_QK_NORM_QK_NORM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

struct QkNormParams {
  // The queries, keys or values of all tokens, as rows.
  struct Section {
    int64_t offset = 0;  // of a token's first row, in elements
    int64_t rows_per_token = 1;
    int64_t rows = 0;  // of all tokens
    int64_t width = 0;
    const float* gain = nullptr;  // [width]; null: the rows are copied
    float* r = nullptr;           // [rows]; forward writes, backward reads
    // [blocks, width]; if set, backward writes the sums of dy * x_hat over the
    // rows that each block processes.
    float* partial_dgain = nullptr;
    // Number of thread blocks in backward; forward chooses its own.
    int blocks = 0;
  };
  static constexpr int kSections = 3;

  FloatType type = FloatType::kFloat;
  int64_t token_stride = 0;  // heads * D
  float eps = 0;
  // [tokens, heads, D]; of these, y may be x, and dx may be dy.
  const void* x = nullptr;
  void* y = nullptr;         // forward writes
  const void* dy = nullptr;  // backward reads
  void* dx = nullptr;        // backward writes
  // Sections without rows are ignored. Backward needs a gain in each other one.
  Section sections[kSections];
};
// Both return cudaErrorInvalidValue for rows that are longer than
// kMaxRmsNormWidth.
cudaError_t LaunchQkNormForward(const QkNormParams& params,
                                cudaStream_t stream);
cudaError_t LaunchQkNormBackward(const QkNormParams& params,
                                 cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPS_QK_NORM_QK_NORM_LAUNCH_H_
