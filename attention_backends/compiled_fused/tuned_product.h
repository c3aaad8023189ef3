#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_

#include "ATen/core/Tensor.h"

namespace tessera {
namespace fused {

// A BatchedProduct (strided_product.h) by cuBLASLt; by LibTorch on a CPU and
// for products that cuBLASLt does not support. Sums are FP32; FP32 operands are
// rounded to TF32 if LibTorch's products may do so.
//
// cuBLASLt proposes algorithms without trying them, and its first proposal is
// not always the fastest for the long, thin products of attention: O = P V in
// FP32 at 16,384 keys and head dim 64 takes 6.6 ms with the first and 5.9 ms
// with the second. So the first product of each kind (dtype, sizes, strides,
// alignments) times all proposals on its own operands, and the process uses the
// fastest from then on. The choice, and with it the rounding, may differ
// between processes. Nothing can be timed during the capture of a CUDA graph,
// so a new kind takes the first proposal there.
void MultiplyTuned(const at::Tensor& a, const at::Tensor& b, double alpha,
                   const at::Tensor& out);

// The product by cuBLASLt's first proposal, hence by the same algorithm in
// every process.
//
// Both functions are defined only in CUDA builds (framework/cuda/cuda_build.h).
void MultiplyRepeatably(const at::Tensor& a, const at::Tensor& b, double alpha,
                        const at::Tensor& out);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_TUNED_PRODUCT_H_
