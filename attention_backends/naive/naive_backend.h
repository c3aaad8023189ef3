#ifndef ATTENTION_BACKENDS_NAIVE_NAIVE_BACKEND_H_
#define ATTENTION_BACKENDS_NAIVE_NAIVE_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// The [B, H, S, T] tensors that NAIVE holds for the backward pass, depending on
// how its softmax is written (score_softmax.h).
enum class HeldScores {
  kWeights = 1,             // P
  kLibrarySoftmax = 2,      // the result of LibTorch's softmax, and P
  kHandWrittenSoftmax = 3,  // S, E = exp(S - rowmax(S)) and P
};

// Attention by its definition, in tensor operations: any device, length and
// head dim; FP32, FP64, BF16, FP16.
//
//   forward                         backward
//   S = scale Q K^T + M             dV = P^T dO
//   P = softmax(S)                  dP = dO V^T
//   O = P V                         dS = P o (dP - rowsum(dO o O))
//                                   dQ = scale dS K,  dK = scale dS^T Q
//
// S and P share one [B, H, S, T] buffer in Q's dtype, held for the backward
// pass; dP and dS share a second one. The exponentials, their sums and the row
// sums are FP32 (FP64 for FP64). Query heads that share a key head are rows of
// one product, so K and V are never repeated and dK, dV sum over the group
// inside it.
//
// This describes HeldScores::kWeights. The other two compute the softmax as
// attention written in PyTorch does and hold what its autograd would hold; they
// exist to be measured.
class NaiveBackend final : public AttentionBackend {
 public:
  constexpr explicit NaiveBackend(HeldScores held = HeldScores::kWeights)
      : held_(held) {}

  absl::string_view name() const override { return "NAIVE"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Assumes that Q, K and V are slices of a fused projection. Excludes the
  // temporary FP32 copy of S that AttentionArgs::wants_lse needs.
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;

 private:
  const HeldScores held_;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_NAIVE_NAIVE_BACKEND_H_
