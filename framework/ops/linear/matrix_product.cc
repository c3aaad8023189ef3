#include "framework/ops/linear/matrix_product.h"

#include "ATen/ATen.h"
#include "framework/cuda/cuda_build.h"
#include "framework/ops/linear/cublas_lt_product.h"
#include "framework/program/op.h"

namespace tessera {

void Multiply(const at::Tensor& a, const at::Tensor& b, bool accumulate,
              bool tuned, at::Tensor c) {
  if constexpr (kCudaBuild) {
    if (a.is_cuda() &&
        MultiplyByCublasLt(a, b, c,
                           {.accumulate = accumulate, .tuned = tuned})) {
      return;
    }
  }
  if (c.scalar_type() == a.scalar_type()) {
    if (accumulate) {
      at::addmm_out(c, c, a, b);
    } else {
      at::mm_out(c, a, b);
    }
  } else {
    // LibTorch's products have results no wider than their operands.
    const at::ScalarType dtype =
        at::promote_types(c.scalar_type(), a.scalar_type());
    WriteGrad({c, accumulate}, at::mm(a.to(dtype), b.to(dtype)));
  }
}

}  // namespace tessera
