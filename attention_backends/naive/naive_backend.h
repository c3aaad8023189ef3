#ifndef ATTENTION_BACKENDS_NAIVE_NAIVE_BACKEND_H_
#define ATTENTION_BACKENDS_NAIVE_NAIVE_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// What NAIVE holds for the backward: how many [B, H, S, T] tensors, by how its
// softmax is written (score_softmax.h).
enum class HeldScores {
  kWeights = 1,             // P
  kLibrarySoftmax = 2,      // the result of LibTorch's softmax, and P
  kHandWrittenSoftmax = 3,  // S, E = exp(S - rowmax(S)) and P
};

// Attention as its definition reads, in tensor operations: any device, length
// and head dim; FP32, FP64, BF16, FP16.
//
//   forward                         backward
//   S = scale Q K^T + M             dV = P^T dO
//   P = softmax(S)                  dP = dO V^T
//   O = P V                         dS = P o (dP - rowsum(dO o O))
//                                   dQ = scale dS K,  dK = scale dS^T Q
//
// S and P share one [B, H, S, T] buffer in Q's dtype, held for the backward;
// dP and dS share a second one. The exponentials, their sums and the row sums
// are FP32 (FP64 for FP64). Query heads that share a key head are rows of one
// product, so K and V are never repeated and dK, dV sum over the group inside
// it.
//
// That is HeldScores::kWeights. The other two do between the products what
// attention written in PyTorch does, and hold what its autograd would; they are
// there to be measured.
class NaiveBackend final : public AttentionBackend {
 public:
  constexpr explicit NaiveBackend(HeldScores held = HeldScores::kWeights)
      : held_(held) {}

  absl::string_view name() const override { return "NAIVE"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  // Of Q, K and V that are slices of a fused projection. What
  // AttentionArgs::wants_lse adds in passing, an FP32 copy of S, is not in it.
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
