#ifndef FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_
#define FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "nlohmann/json.hpp"

namespace tessera {

struct ProductOptions {
  double alpha = 1;
  bool accumulate = false;
  // Whether to use the fastest algorithm instead of cuBLASLt's first proposal.
  bool tuned = false;
};

// out = alpha a b, or out += alpha a b, by cuBLASLt. Enqueues nothing and
// returns false for products that cuBLASLt does not support.
//   a: [M, K] or [N, M, K] and b: [K, C] or [N, K, C], of one dtype: FP32, BF16
//   or FP16, row- or column-major
//   out: [M, C] or [N, M, C], row-major, in their dtype or in FP32
// Sums are FP32; FP32 operands are rounded to TF32 if LibTorch's products may
// do so.
//
// cuBLASLt proposes algorithms without trying them, and its first proposal is
// often not the fastest. On an H200 the fastest take 0.93 to 0.98 of the time
// for the linear layers of a step in BF16, and O = P V in FP32 at 16,384 keys
// and head dim 64 takes 5.9 ms instead of 6.6. So the first tuned product of
// each kind (dtypes, sizes, strides, alignments) times all proposals on its own
// operands and result. That cannot be done while a CUDA graph is captured, nor
// if the product accumulates, because trials would add up: then a new kind
// takes the first proposal, unless TuneProduct() has been called for it.
//
// The algorithm decides in which order a sum is added up, hence its rounding.
// So that later runs round alike, choices are kept in a file for each kind of
// GPU and release of cuBLASLt (product_table.h), and in checkpoints.
bool MultiplyByCublasLt(const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& out, const ProductOptions& options);

// Chooses the algorithm for tuned products of this kind, whether or not they
// accumulate, unless that has been done. Trials overwrite `out`. Does nothing
// while a CUDA graph is captured, and for products that cuBLASLt does not
// support.
void TuneProduct(const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& out);

// The choices that this process has used, for a checkpoint; and those of a
// checkpoint, which replace the file's. Call it before the first product.
nlohmann::json TunedProducts();
void SetTunedProducts(const nlohmann::json& products);

// All are defined only in CUDA builds (framework/cuda/cuda_build.h).

}  // namespace tessera

#endif  // FRAMEWORK_OPS_LINEAR_CUBLAS_LT_PRODUCT_H_
