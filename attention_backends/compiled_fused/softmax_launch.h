#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_LAUNCH_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "attention_backends/compiled_fused/softmax_spec.h"
#include "c10/core/Device.h"

namespace tessera {
namespace fused {

struct SoftmaxForwardCall {
  SoftmaxSpec spec;
  int64_t rows = 0;        // B H S
  void* scores = nullptr;  // [rows, T]: S, replaced by P
  float* lse = nullptr;    // [rows], or null
};

// A [B, H, S, D] tensor with D contiguous; strides in elements. Has the layout
// of the kernel's struct of this name.
struct HeadRows {
  const void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

struct SoftmaxBackwardCall {
  SoftmaxSpec spec;
  int64_t rows = 0;
  const void* p = nullptr;  // [rows, T]
  void* d_p = nullptr;      // [rows, T]: dP, replaced by dS
  HeadRows d_o, o;
  int heads = 0, head_dim = 0;
};

// Launches on LibTorch's current stream of `device`, which holds all data,
// aligned to 16 bytes. The first call for a spec compiles its kernels or reads
// them from the user's cache folder; during the capture of a CUDA graph it
// fails with FailedPrecondition. Defined only in CUDA builds
// (framework/cuda/cuda_build.h).
absl::Status Launch(const SoftmaxForwardCall& call, c10::Device device);
absl::Status Launch(const SoftmaxBackwardCall& call, c10::Device device);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_SOFTMAX_LAUNCH_H_
