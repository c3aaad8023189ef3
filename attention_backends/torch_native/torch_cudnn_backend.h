#ifndef ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_CUDNN_BACKEND_H_
#define ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_CUDNN_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// cuDNN's fused attention as LibTorch calls it
// (at::_scaled_dot_product_cudnn_attention and _backward), called directly.
// BF16 and FP16, compute capability 8.0 and newer, head dims that are multiples
// of 8 up to 128; grouped heads natively. LibTorch aligns the causal mask at
// the top left, so a causal mask needs as many queries as keys. dQ is summed by
// atomics, so gradients differ from run to run. The first call for a new shape
// compiles a kernel.
//
// Reads slices of a fused projection in place; a dO that is not stored as
// [B, S, H, D] is copied. LibTorch allocates the gradients that cuDNN writes;
// they are copied into the slices of AttentionGrads. Saves O, L (with a
// trailing dimension of 1, `saved[0]`) and two random-state scalars, which
// dropout would use.
class TorchCudnnBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "TORCH_CUDNN"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes a dO stored as [B, S, H, D]. The workspace is what cuDNN's graph
  // holds between its operations: dQ and rowsum(dO o O) in FP32 and, with
  // grouped heads, dK and dV of every query head.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_CUDNN_BACKEND_H_
