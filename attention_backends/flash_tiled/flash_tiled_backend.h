#ifndef ATTENTION_BACKENDS_FLASH_TILED_FLASH_TILED_BACKEND_H_
#define ATTENTION_BACKENDS_FLASH_TILED_FLASH_TILED_BACKEND_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "attention_backends/attention_backend.h"

namespace tessera {

// FlashAttention-2 (Dao, "FlashAttention-2: Faster Attention with Better
// Parallelism and Work Partitioning", 2023, Algorithms 1 and 2) in tensor
// operations: a readable version of the CUDA kernels, to compare them with. Any
// device, length and head dim; FP32, FP64, BF16, FP16. Deterministic.
//
//   forward, per tile of queries        backward, per tile of keys
//   for each tile of keys:              for each tile of queries:
//     S = scale Q K^T + M                 P = exp(scale Q K^T + M - L)
//     m' = max(m, rowmax S)               dV += P^T dO
//     P = exp(S - m')                     dS = P o (dO V^T - rowsum(dO o O))
//     l = exp(m - m') l + rowsum P        dQ += scale dS K
//     O = exp(m - m') O + P V             dK += scale dS^T Q
//     m = m'
//   O = O / l,  L = m + log l
//
// Saves only O and L; P is never larger than a tile. Everything is computed in
// FP32 (FP64 for FP64): tiles are widened as they are loaded, results rounded
// as they are stored. A tile spans all heads, so that each line above is one
// batched operation, and the query heads that share a key head are rows of one
// product. Key tiles that no query of a tile sees are skipped; those that every
// query sees are not masked. Reports no phases, since they alternate tile by
// tile.
class FlashTiledBackend final : public AttentionBackend {
 public:
  absl::string_view name() const override { return "FLASH_TILED"; }
  absl::Status Supports(const AttentionProblem& problem) const override;
  AttentionMemory Plan(const AttentionProblem& problem) const override;
  absl::Status Forward(const AttentionArgs& args,
                       AttentionOut* out) const override;
  absl::Status Backward(const AttentionArgs& args, const AttentionOut& out,
                        const at::Tensor& d_o_bhsd,
                        AttentionGrads* grads) const override;
};

}  // namespace tessera

#endif  // ATTENTION_BACKENDS_FLASH_TILED_FLASH_TILED_BACKEND_H_
