#include "ATen/ATen.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace {

using Addition = RmsNormKernels::Addition;
using AdditionGradient = RmsNormKernels::AdditionGradient;

void Forward(const at::Tensor& x, const Addition& add, const at::Tensor& gain,
             double eps, const at::Tensor& y, const at::Tensor& r) {
  at::Tensor sum = add.sum;
  if (sum.defined()) at::add_out(sum, x, add.delta);
  const at::Tensor rows = Rows(sum.defined() ? sum : x).to(r.scalar_type());
  at::Tensor inverse = r;
  inverse.copy_((rows.square().mean(-1) + eps).rsqrt());
  Rows(y).copy_(rows * r.unsqueeze(-1) * gain.to(rows.scalar_type()));
}

void Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& r,
              const at::Tensor& gain, const GradTarget& gain_grad,
              const at::Tensor& dx, const AdditionGradient& add) {
  const at::ScalarType dtype = r.scalar_type();
  const at::Tensor r_column = r.unsqueeze(-1);
  const at::Tensor dy_rows = Rows(dy).to(dtype);
  const at::Tensor x_hat = Rows(x).to(dtype) * r_column;
  if (gain_grad.grad.defined()) {
    WriteGrad(gain_grad, (dy_rows * x_hat).sum(0));
  }
  if (!dx.defined() && !add.d_delta.defined()) return;
  const at::Tensor s = dy_rows * gain.to(dtype);
  const at::Tensor projection = (s * x_hat).mean(-1, /*keepdim=*/true);
  at::Tensor d_sum =
      (r_column * (s - x_hat * projection)).to(x.scalar_type()).view(x.sizes());
  if (add.d_sum.defined()) d_sum += add.d_sum;
  if (dx.defined()) dx.copy_(d_sum);
  if (add.d_delta.defined()) add.d_delta.copy_(d_sum);
}

}  // namespace

const RmsNormKernels RmsNormKernels::kReference = {.forward = Forward,
                                                   .backward = Backward};

}  // namespace tessera
