#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Attention as its definition reads, with everything between the products in
// one kernel each way, which is compiled while the program runs for the very
// dtype, lengths and mask at hand.
//
//   forward                         backward
//   S = scale Q K^T                 dV = P^T dO
//   P = softmax(S + M)  [kernel]    dP = dO V^T
//   O = P V                         dS = P o (dP - rowsum(dO o O))  [kernel]
//                                   dQ = scale dS K,  dK = scale dS^T Q
//
// S and P share one [B, H, S, T] buffer in Q's dtype, held for the backward,
// dP and dS a second one; each kernel reads what it needs once and writes once.
// The products leave out most of what a causal mask hides (banded_product.h).
// Statistics are FP32. On a CPU the kernels are loops.
//
// Every sum has a fixed order, so gradients are the same whenever a process
// computes them again; in every process only with AttentionArgs::deterministic,
// since otherwise the products' algorithms are chosen by timing them
// (tuned_product.h). The first call for a shape compiles (a fraction of a
// second, logged) unless the user's cache folder has the kernels; so that call
// cannot be part of a CUDA graph's capture.
class CompiledFusedBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "COMPILED_FUSED"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Of Q, K and V that are slices of a fused projection, without the
  // statistics that AttentionArgs::wants_lse asks for.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_
