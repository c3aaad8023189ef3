#include "ATen/ATen.h"
#include "framework/ops/swiglu/swiglu_kernels.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

at::Tensor ToArithmetic(const at::Tensor& x) {
  return x.to(ArithmeticDtype(x.scalar_type()));
}

void Forward(const at::Tensor& ab, const at::Tensor& h) {
  const int64_t f = ab.size(-1) / 2;
  const at::Tensor a = ToArithmetic(ab.narrow(-1, 0, f));
  const at::Tensor b = ToArithmetic(ab.narrow(-1, f, f));
  h.copy_(at::silu(a) * b);
}

void Backward(const at::Tensor& ab, const at::Tensor& dh, at::Tensor d_ab) {
  const int64_t f = ab.size(-1) / 2;
  const at::Tensor a = ToArithmetic(ab.narrow(-1, 0, f));
  const at::Tensor b = ToArithmetic(ab.narrow(-1, f, f));
  const at::Tensor dh_wide = ToArithmetic(dh);
  const at::Tensor sigma = at::sigmoid(a);
  const at::Tensor db = dh_wide * a * sigma;
  d_ab.narrow(-1, 0, f).copy_(dh_wide * b * sigma * (1 + a * (1 - sigma)));
  d_ab.narrow(-1, f, f).copy_(db);
}

}  // namespace

const SwiGluKernels SwiGluKernels::kReference = {.forward = Forward,
                                                 .backward = Backward};

}  // namespace tessera
