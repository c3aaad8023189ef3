#ifndef ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_EFFICIENT_BACKEND_H_
#define ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_EFFICIENT_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// The "memory-efficient" kernels of xFormers as LibTorch builds them
// (at::_efficient_attention_forward and _backward), called directly. FP32 (by
// three TF32 products each), BF16 and FP16; compute capability 8.0 and newer;
// head dims that are multiples of 16 bytes. The causal mask is aligned at the
// bottom right. The only one of LibTorch's kernels that we run
// deterministically: a single CUDA block per head then passes over the keys.
//
// Does not support grouped heads: K and V are repeated for every query head in
// forward and again in backward (except a single key head, which all query
// heads read), and their gradients are summed over each group. Otherwise reads
// slices of a fused projection in place; a dO that is not stored as
// [B, S, H, D] is copied. The kernel allocates O and the gradients; these are
// copied into the slices of AttentionGrads. Saves O, L with each head's rows
// padded to a multiple of 32 (`saved[0]`; lse_bhs is a view of it) and two
// random-state scalars, which dropout would use.
class TorchEfficientBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "TORCH_EFFICIENT"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes a dO stored as [B, S, H, D].
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_TORCH_NATIVE_TORCH_EFFICIENT_BACKEND_H_
