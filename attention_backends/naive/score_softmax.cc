#include "attention_backends/naive/score_softmax.h"

#include "ATen/ATen.h"
#include "framework/precision/precision_policy.h"

namespace tessera {
namespace {

at::Tensor BlindRowsOf(const at::Tensor& x, int64_t blind_rows) {
  return x.narrow(2, 0, blind_rows);
}

at::Tensor RowSum(const at::Tensor& x) {
  return x.sum(-1, /*keepdim=*/true, ArithmeticDtype(x.scalar_type()));
}

// In place, since a row is read before it is written.
void SoftmaxInPlace(const at::Tensor& s) {
  at::Tensor y = s;
  at::_softmax_out(y, s, /*dim=*/-1, /*half_to_float=*/false);
}

}  // namespace

at::Tensor FusedSoftmax(const at::Tensor& s, int64_t blind_rows) {
  SoftmaxInPlace(s);
  if (blind_rows > 0) BlindRowsOf(s, blind_rows).zero_();
  return s;
}

// Uses the only operation of ATen that reads each n^2 operand once and
// broadcasts the row sums: the gradient of a squared difference, P * 2 (dP -
// rowsum). ATen's backward of softmax would hold P o dP as a third n^2 tensor.
void FusedSoftmaxBackward(const at::Tensor& p, const at::Tensor& rowsum,
                          const at::Tensor& d_p) {
  at::Tensor d_s = d_p;
  at::mse_loss_backward_out(d_s, p, d_p, rowsum.to(p.scalar_type()),
                            at::Reduction::None);
}

void LibrarySoftmaxForward(const LibrarySoftmax& softmax, int64_t blind_rows) {
  SoftmaxInPlace(softmax.y);  // NaN in blind rows
  softmax.p.copy_(softmax.y);
  if (blind_rows > 0) BlindRowsOf(softmax.p, blind_rows).zero_();
}

void LibrarySoftmaxBackward(const at::Tensor& y, int64_t blind_rows,
                            const at::Tensor& d_p) {
  at::Tensor d_s = d_p;
  at::_softmax_backward_data_out(d_s, d_p, y, /*dim=*/-1, y.scalar_type());
  // The gradient of the mask.
  if (blind_rows > 0) BlindRowsOf(d_s, blind_rows).zero_();
}

void HandWrittenSoftmaxForward(HandWrittenSoftmax out, int64_t blind_rows) {
  at::amax_out(out.max, out.s, -1, /*keepdim=*/true);
  // Avoids -infinity - -infinity, which is NaN.
  if (blind_rows > 0) BlindRowsOf(out.max, blind_rows).zero_();
  at::sub_out(out.e, out.s, out.max).exp_();
  at::sum_out(out.sum, out.e, -1, /*keepdim=*/true, out.sum.scalar_type());
  if (blind_rows > 0) BlindRowsOf(out.sum, blind_rows).fill_(1);
  at::div_out(out.p, out.e, out.sum);
}

void HandWrittenSoftmaxBackward(const HandWrittenSoftmax& softmax,
                                const at::Tensor& d_p) {
  const at::Tensor& e = softmax.e;
  const at::Tensor& z = softmax.sum;
  at::Tensor work = d_p * e;
  const at::Tensor d_z = RowSum(work).neg_().div_(z).div_(z);
  at::Tensor d = d_p;
  at::addcdiv_out(d, d_z, d, z);
  d.mul_(e);
  at::eq_out(work, softmax.s, softmax.max);
  // A blind row has no maximum and no gradient: 0 / 1.
  const at::Tensor share = RowSum(d).neg_().div_(RowSum(work).clamp_min_(1));
  d.addcmul_(work, share);
}

}  // namespace tessera
