#ifndef ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_FLASH_BACKEND_H_
#define ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_FLASH_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// FlashAttention-2 as LibTorch builds it (at::_flash_attention_forward and
// _backward), called directly. BF16 and FP16, compute capability 8.0 and newer,
// head dims that are multiples of 8 up to 256; grouped heads natively. Its
// causal mask is aligned at the bottom right, like ours. dQ is summed by
// atomics, so gradients differ from run to run; the kernel's deterministic
// mode, which sums a dQ per multiprocessor afterwards, is not used.
//
// Reads slices of a fused projection in place; a dO that is not stored as
// [B, S, H, D] is copied. The kernel allocates O and the gradients; these are
// copied into the slices of AttentionGrads. Saves O, L and the kernel's two
// random-state tensors, which dropout would use.
class TorchFlashBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "TORCH_FLASH"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes a dO stored as [B, S, H, D]. Excludes the workspace of forward over
  // few short sequences, which splits the keys by the number of
  // multiprocessors.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_FLASH_BACKEND_H_
