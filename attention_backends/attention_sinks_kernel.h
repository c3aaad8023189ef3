#ifndef ATTENTION_BACKENDS_ATTENTION_SINKS_KERNEL_H_
#define ATTENTION_BACKENDS_ATTENTION_SINKS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "framework/cuda/float_type.h"

namespace tessera {

// As in attention_sinks.h.
struct SinkParams {
  FloatType type = FloatType::kFloat;
  int64_t batch = 0, sequence = 0;  // B, S
  int heads = 0, head_dim = 0;      // H, D; D is a multiple of 4
  const float* sinks = nullptr;     // [H]
  void* o = nullptr;                // [B, S, H, D]
  float* lse = nullptr;             // [B, H, S]
  const void* d_o = nullptr;        // D contiguous, aligned to 4 elements
  int64_t d_o_batch = 0, d_o_head = 0, d_o_row = 0;  // strides
  float* partial = nullptr;                          // [H, chunks], scratch
  int chunks = 0;
  float* d_sinks = nullptr;  // [H]
};

cudaError_t LaunchApplySinks(const SinkParams& params, cudaStream_t stream);
cudaError_t LaunchSinkGradients(const SinkParams& params, cudaStream_t stream);

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_ATTENTION_SINKS_KERNEL_H_
