#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "attention_backends/attention_backend.h"
#include "attention_backends/compiled_fused/row_mask.h"
#include "attention_backends/strided_product.h"

namespace tessera {
namespace fused {

// The problem's mask, split into as many bands as pay off. Bands run one after
// the other, so each must have enough rows to fill the device.
RowMask MaskOf(const AttentionProblem& problem);

// The five products of attention, which skip as much of what a causal mask
// hides as bands allow: with c bands, (c - 1) / 2 c of the scores are neither
// computed, written nor read. Tensors are operands of strided_product.h,
// [B, G, H/G S, .] and [B, G, T, .] with a single band, else H = G. Columns of
// an n^2 tensor from RowMask::Written() on are left untouched.
class BandedProducts {
 public:
  // `batch`, which outlives this object, computes the products.
  BandedProducts(const RowMask& mask, BatchedProduct batch)
      : mask_(mask), batch_(batch) {}

  const RowMask& mask() const { return mask_; }

  // n2 = alpha x y^T, where x has queries and y keys: the scores, and dP.
  void MultiplyIntoScores(const at::Tensor& x, const at::Tensor& y,
                          double alpha, const at::Tensor& n2) const;

  // out_bhsd = alpha n2 y, where y has keys: O, and dQ.
  void MultiplyByKeys(const at::Tensor& n2, const at::Tensor& y, double alpha,
                      const at::Tensor& out_bhsd) const;

  // out = alpha n2^T x, where x has queries and out keys: dV, and dK.
  void MultiplyByQueries(const at::Tensor& n2, const at::Tensor& x,
                         double alpha, const at::Tensor& out) const;

 private:
  const RowMask mask_;
  const BatchedProduct batch_;
};

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_BANDED_PRODUCT_H_
