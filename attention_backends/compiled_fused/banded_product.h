#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/compiled_fused/row_mask.h"
#include "attention_backends/strided_product.h"

namespace tessera {
namespace fused {

// The mask with as many bands as pay: each must have enough rows to fill the
// device by itself, since bands run one after the other.
RowMask MaskOf(const AttentionProblem& problem);

// The five products of attention, which leave out what a causal mask hides as
// far as bands allow: of c bands (c - 1) / 2 c are neither computed, written
// nor read. Tensors are as strided_product.h takes them: with a single band
// [B, G, H/G S, .] and [B, G, T, .], else H = G. What lies behind
// RowMask::Written() in an n^2 tensor is left alone.
class BandedProducts {
 public:
  // `deterministic`: by the same algorithms in every process
  // (tuned_product.h).
  BandedProducts(const RowMask& mask, bool deterministic);

  const RowMask& mask() const { return mask_; }

  // n2 = alpha x y^T; x of queries, y of keys: the scores, and dP.
  void MultiplyIntoScores(const at::Tensor& x, const at::Tensor& y,
                          double alpha, const at::Tensor& n2) const;

  // out_bhsd = alpha n2 y; y of keys: O, and dQ.
  void MultiplyByKeys(const at::Tensor& n2, const at::Tensor& y, double alpha,
                      const at::Tensor& out_bhsd) const;

  // out = alpha n2^T x; x of queries, out of keys: dV, and dK.
  void MultiplyByQueries(const at::Tensor& n2, const at::Tensor& x,
                         double alpha, const at::Tensor& out) const;

 private:
  const RowMask mask_;
  const BatchedProduct batch_;
};

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_
