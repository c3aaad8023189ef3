#include "ATen/ATen.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/rows.h"
#include "framework/ops/swiglu/swiglu_kernels.h"
#include "framework/ops/swiglu/swiglu_launch.h"

namespace tessera {
namespace {

void Forward(const at::Tensor& ab, const at::Tensor& h) {
  const at::Tensor rows = ab.contiguous();
  const SwiGluParams params = {.type = FloatTypeOf(ab),
                               .rows = RowCount(ab),
                               .width = ab.size(-1) / 2,
                               .ab = rows.const_data_ptr(),
                               .h = h.mutable_data_ptr()};
  ThrowIfError(Launch(ab, "SwiGLU's kernel", LaunchSwiGluForward, params));
}

void Backward(const at::Tensor& ab, const at::Tensor& dh, at::Tensor d_ab) {
  const at::Tensor rows = ab.contiguous(), dh_rows = dh.contiguous();
  const SwiGluParams params = {.type = FloatTypeOf(ab),
                               .rows = RowCount(ab),
                               .width = ab.size(-1) / 2,
                               .ab = rows.const_data_ptr(),
                               .dh = dh_rows.const_data_ptr(),
                               .d_ab = d_ab.mutable_data_ptr()};
  ThrowIfError(
      Launch(ab, "SwiGLU's backward kernel", LaunchSwiGluBackward, params));
}

}  // namespace

const SwiGluKernels SwiGluKernels::kCuda = {.forward = Forward,
                                            .backward = Backward};

}  // namespace tessera
