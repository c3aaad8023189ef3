#ifndef FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_KERNEL_H_
#define FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_KERNEL_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace tessera {

// D = alpha A B^T + beta C + diagonal I for `count` matrices of FP16; all
// contiguous and at multiples of 16 bytes. A and B are [n, k], C and D are
// symmetric [n, n]. With `transposed` A and B are given as [k, n], so D = alpha
// A^T B + ....
struct SymmetricProductParams {
  int64_t count = 0, n = 0, k = 0;  // n and k are multiples of 8
  bool transposed = false;
  const void *a = nullptr, *b = nullptr;
  const void* c = nullptr;  // null: no such summand
  void* d = nullptr;        // neither A, B nor C
  float alpha = 1, beta = 0, diagonal = 0;
};

// For compute capability 9.0.
cudaError_t LaunchSymmetricProduct(const SymmetricProductParams& params,
                                   cudaStream_t stream);

}  // namespace tessera

#endif  // FRAMEWORK_OPTIM_SYMMETRIC_PRODUCT_KERNEL_H_
