#ifndef FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_H_
#define FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_H_

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"

namespace tessera {

// The summands of a product and their factors.
struct SymmetricSum {
  double alpha = 1;     // of A B
  double beta = 0;      // of C
  double diagonal = 0;  // of I
};

// D = alpha A B + beta C + diagonal I, rounded once, for a batch of matrices
// whose D is symmetric: B is the transposed view of A, or A and B are symmetric
// and commute. A is [count, n, k], contiguous or a transposed view; other
// matrices are [count, n, n], contiguous and symmetric. C may be undefined if
// beta is 0; D is none of the others.
//
// FP16 with n and k that are multiples of 8 is computed by a kernel of ours on
// compute capability 9.0: of two mirrored elements one, except in blocks of 256
// x 256 on the diagonal. Everything else is LibTorch's, 16-bit types on a CPU
// by way of FP32. On other GPUs FP16 needs FP32 sums in cuBLAS, which
// PrecisionPolicy asks for. Throws like LibTorch; the status is that of the
// kernel's launch.
absl::Status SymmetricProduct(const at::Tensor& d, const at::Tensor& a,
                              const at::Tensor& b, const SymmetricSum& sum,
                              const at::Tensor& c = {});

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_H_
