#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_

#include "ATen/core/Tensor.h"

namespace tessera {
namespace fused {

// A BatchedProduct (strided_product.h), on a GPU by cuBLASLt, elsewhere and
// for what cuBLASLt does not take LibTorch's. Sums are FP32; FP32 operands are
// rounded to TF32 where LibTorch's products may do so.
//
// cuBLASLt proposes algorithms without trying them, and for the long, thin
// products of attention its first is not always the best: O = P V in FP32 at
// 16,384 keys and head dim 64 takes 6.6 ms by the first of them and 5.9 by the
// second. So the first product of each kind (dtype, sizes, strides, alignments)
// times them all on its own operands, and it and the later ones of the process
// take the fastest. Which that is, and with it the rounding, may differ from
// one process to the next. While a CUDA graph is captured nothing can be timed:
// a kind that is new then takes the first proposal.
void MultiplyTuned(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out);

// The same by cuBLASLt's first proposal, hence by the same algorithm in every
// process.
//
// Only CUDA builds have the two (framework/cuda/cuda_build.h).
void MultiplyRepeatably(const at::Tensor& a, const at::Tensor& b, double alpha,
                        const at::Tensor& out);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_
