#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// Attention by its definition, with everything between the products fused into
// one kernel per pass. The kernels are compiled at run time for the dtype,
// lengths and mask of the call.
//
//   forward                         backward
//   S = scale Q K^T                 dV = P^T dO
//   P = softmax(S + M)  [kernel]    dP = dO V^T
//   O = P V                         dS = P o (dP - rowsum(dO o O))  [kernel]
//                                   dQ = scale dS K,  dK = scale dS^T Q
//
// S and P share one [B, H, S, T] buffer in Q's dtype, held for the backward
// pass; dP and dS share a second one. Each kernel reads its inputs once and
// writes its result once. The products skip most of what a causal mask hides
// (banded_product.h). Statistics are FP32. On a CPU the kernels are loops.
//
// Every sum has a fixed order. The order in a product depends on its algorithm
// (AttentionArgs::products). The first call for a shape compiles its kernels (a
// fraction of a second, logged) unless they are in the user's cache folder, so
// that call cannot be captured in a CUDA graph.
class CompiledFusedBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "COMPILED_FUSED"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes that Q, K and V are slices of a fused projection. Excludes the L
  // that AttentionArgs::wants_lse asks for.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  std::vector<MatrixProduct> Products(
      const AttentionArgs& args, const AttentionGrads& grads) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_COMPILED_FUSED_BACKEND_H_
