#include "ATen/ATen.h"
#include "framework/ops/qk_norm/qk_norm_kernels.h"

namespace tessera {
namespace {

using Sections = QkNormKernels::Sections;

// A view: [tokens, rows per token, width].
at::Tensor RowsIn(const at::Tensor& x, const QkNormSection& section) {
  return x.view({x.size(0) * x.size(1), -1})
      .narrow(1, section.offset, section.elements_per_token())
      .unflatten(1, {section.rows_per_token, section.width});
}

void Forward(const at::Tensor& qkv, Sections sections, double eps,
             const at::Tensor& y) {
  CopyValues(qkv, sections, y);
  for (const QkNormSection& section : sections) {
    const at::ScalarType dtype = section.r.scalar_type();
    const at::Tensor x = RowsIn(qkv, section).to(dtype);
    const at::Tensor r = (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
    section.r.copy_(r.flatten());
    RowsIn(y, section).copy_(x * r * section.gain.to(dtype));
  }
}

void Backward(const at::Tensor& dy, const at::Tensor& qkv, Sections sections,
              const at::Tensor& dx) {
  CopyValues(dy, sections, dx);
  for (const QkNormSection& section : sections) {
    const at::ScalarType dtype = section.r.scalar_type();
    const at::Tensor r = section.r.view({-1, section.rows_per_token, 1});
    const at::Tensor dy_rows = RowsIn(dy, section).to(dtype);
    const at::Tensor x_hat = RowsIn(qkv, section).to(dtype) * r;
    if (section.gain_grad.grad.defined()) {
      WriteGrad(section.gain_grad,
                (dy_rows * x_hat).sum_to_size({section.width}));
    }
    const at::Tensor s = dy_rows * section.gain.to(dtype);
    const at::Tensor projection = (s * x_hat).mean(-1, /*keepdim=*/true);
    RowsIn(dx, section).copy_(r * (s - x_hat * projection));
  }
}

}  // namespace

const QkNormKernels QkNormKernels::kReference = {.forward = Forward,
                                                 .backward = Backward};

}  // namespace tessera
