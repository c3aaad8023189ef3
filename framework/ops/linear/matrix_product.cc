#include "framework/ops/linear/matrix_product.h"

#include "ATen/ATen.h"
#include "framework/program/op.h"

namespace tessera {

void Multiply(const at::Tensor& a, const at::Tensor& b, bool accumulate,
              at::Tensor c) {
  if (c.scalar_type() == a.scalar_type()) {
    if (accumulate) {
      at::addmm_out(c, c, a, b);
    } else {
      at::mm_out(c, a, b);
    }
  } else if (a.is_cuda() && c.scalar_type() == at::kFloat) {
    // cuBLAS reads the narrow operands and accumulates in FP32.
    if (accumulate) {
      at::addmm_out(c, c, a, b, at::kFloat);
    } else {
      at::mm_out(c, a, b, at::kFloat);
    }
  } else {
    // On a CPU, a product's result is no wider than its operands.
    const at::ScalarType dtype =
        at::promote_types(c.scalar_type(), a.scalar_type());
    WriteGrad({c, accumulate}, at::mm(a.to(dtype), b.to(dtype)));
  }
}

}  // namespace tessera
