#include <cstdint>

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAContext.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"
#include "framework/ops/rms_norm/rms_norm_launch.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace {

static_assert(RmsNormKernels::kLongestCudaRow == kMaxRmsNormWidth);

void Forward(const at::Tensor& x, const RmsNormKernels::Addition& add,
             const at::Tensor& gain, double eps, const at::Tensor& y,
             const at::Tensor& r) {
  const at::Tensor rows = x.contiguous();
  const at::Tensor wide_gain = gain.to(at::kFloat);
  RmsNormParams params = {.x_type = FloatTypeOf(x),
                          .y_type = FloatTypeOf(y),
                          .rows = RowCount(x),
                          .width = x.size(-1),
                          .eps = static_cast<float>(eps),
                          .x = rows.const_data_ptr(),
                          .gain = wide_gain.const_data_ptr<float>(),
                          .y = y.mutable_data_ptr(),
                          .r = r.mutable_data_ptr<float>()};
  if (add.sum.defined()) {
    params.delta = add.delta.const_data_ptr();
    params.sum = add.sum.mutable_data_ptr();
  }
  ThrowIfError(Launch(x, "RMSNorm's kernel", LaunchRmsNormForward, params));
}

void Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& r,
              const at::Tensor& gain, const GradTarget& gain_grad,
              const at::Tensor& dx,
              const RmsNormKernels::AdditionGradient& add) {
  const bool wants_gain = gain_grad.grad.defined();
  const int64_t width = x.size(-1);
  const int64_t row_groups = CudaPartialSums(
      RowCount(x),
      at::cuda::getDeviceProperties(x.get_device())->multiProcessorCount);
  const at::Tensor dy_rows = dy.contiguous(), x_rows = x.contiguous();
  const at::Tensor wide_gain = gain.to(at::kFloat);
  const at::Tensor d_x = dx.defined() ? dx : at::empty_like(x);
  at::Tensor partial;
  RmsNormParams params = {.x_type = FloatTypeOf(x),
                          .y_type = FloatTypeOf(dy),
                          .rows = RowCount(x),
                          .width = width,
                          .x = x_rows.const_data_ptr(),
                          .gain = wide_gain.const_data_ptr<float>(),
                          .r = r.mutable_data_ptr<float>(),
                          .dy = dy_rows.const_data_ptr(),
                          .dx = d_x.mutable_data_ptr(),
                          .row_groups = static_cast<int>(row_groups)};
  at::Tensor d_delta = add.d_delta;
  if (add.d_sum.defined() && !d_delta.defined()) d_delta = at::empty_like(dy);
  if (d_delta.defined()) {
    params.d_delta = d_delta.mutable_data_ptr();
    if (add.d_sum.defined()) params.d_sum = add.d_sum.const_data_ptr();
  }
  if (wants_gain) {
    partial = at::empty({row_groups, width}, r.options());
    params.partial_dgain = partial.mutable_data_ptr<float>();
  }
  ThrowIfError(
      Launch(x, "RMSNorm's backward kernel", LaunchRmsNormBackward, params));
  if (wants_gain) {
    const ColumnSumsParams sums = {.rows = params.row_groups,
                                   .width = width,
                                   .partial = params.partial_dgain,
                                   .type = FloatTypeOf(gain_grad.grad),
                                   .accumulate = gain_grad.accumulate,
                                   .sums = gain_grad.grad.mutable_data_ptr()};
    ThrowIfError(
        Launch(x, "The gain gradient's kernel", LaunchColumnSums, sums));
  }
}

}  // namespace

const RmsNormKernels RmsNormKernels::kCuda = {.forward = Forward,
                                              .backward = Backward};

}  // namespace tessera
