#include "framework/ops/cuda_ops.h"

#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAContext.h"
#include "c10/cuda/CUDAGuard.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_status.h"
#include "framework/ops/kernels.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace cuda {
namespace {

FloatType TypeOf(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf:
      return FloatType::kHalf;
    case at::kBFloat16:
      return FloatType::kBFloat16;
    default:  // HasKernels() admits no other
      return FloatType::kFloat;
  }
}

// Launches on the current stream of the tensor's device.
template <typename Params>
void Launch(cudaError_t (*launch)(const Params&, cudaStream_t),
            const Params& params, const at::Tensor& on, const char* name) {
  const c10::cuda::CUDAGuard guard(on.device());
  ThrowIfError(
      AsStatus(launch(params, at::cuda::getCurrentCUDAStream()), name));
}

// The combinations of x and y that the normalisation's kernels are built for.
bool NormTypesFit(const at::Tensor& x, at::ScalarType y) {
  const bool y_has_kernels =
      y == at::kFloat || y == at::kHalf || y == at::kBFloat16;
  return y_has_kernels &&
         (x.scalar_type() == y || x.scalar_type() == at::kFloat);
}

}  // namespace

bool HasKernels(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.is_cuda() &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16);
}

void RmsNormForward(const at::Tensor& x, const at::Tensor& gain, double eps,
                    const at::Tensor& y, const at::Tensor& r) {
  if (!NormTypesFit(x, y.scalar_type()) || r.scalar_type() != at::kFloat) {
    reference::RmsNormForward(x, gain, eps, y, r);
    return;
  }
  const at::Tensor rows = x.contiguous();
  const at::Tensor wide_gain = gain.to(at::kFloat);
  const RmsNormParams params = {.x_type = TypeOf(x),
                                .y_type = TypeOf(y),
                                .rows = RowCount(x),
                                .width = x.size(-1),
                                .eps = static_cast<float>(eps),
                                .x = rows.const_data_ptr(),
                                .gain = wide_gain.const_data_ptr<float>(),
                                .y = y.mutable_data_ptr(),
                                .r = r.mutable_data_ptr<float>()};
  Launch(LaunchRmsNormForward, params, x, "RMSNorm's kernel");
}

void RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& r, const at::Tensor& gain,
                     const GradTarget& gain_grad, const at::Tensor& dx) {
  const bool wants_gain = gain_grad.grad.defined();
  const int64_t width = x.size(-1);
  if (!NormTypesFit(x, dy.scalar_type()) || r.scalar_type() != at::kFloat ||
      width > kMaxRmsNormBackwardWidth ||
      (wants_gain && !HasKernels(gain_grad.grad))) {
    reference::RmsNormBackward(dy, x, r, gain, gain_grad, dx);
    return;
  }
  // Two blocks of up to 512 threads on each multiprocessor: enough loads in
  // flight, and few partial sums.
  const int64_t row_groups = std::min<int64_t>(
      RowCount(x),
      2 * at::cuda::getDeviceProperties(x.get_device())->multiProcessorCount);
  const at::Tensor dy_rows = dy.contiguous(), x_rows = x.contiguous();
  const at::Tensor wide_gain = gain.to(at::kFloat);
  const at::Tensor d_x = dx.defined() ? dx : at::empty_like(x);
  at::Tensor partial;
  RmsNormParams params = {.x_type = TypeOf(x),
                          .y_type = TypeOf(dy),
                          .rows = RowCount(x),
                          .width = width,
                          .x = x_rows.const_data_ptr(),
                          .gain = wide_gain.const_data_ptr<float>(),
                          .r = r.mutable_data_ptr<float>(),
                          .dy = dy_rows.const_data_ptr(),
                          .dx = d_x.mutable_data_ptr(),
                          .row_groups = static_cast<int>(row_groups)};
  if (wants_gain) {
    partial = at::empty({row_groups, width}, r.options());
    params.partial_dgain = partial.mutable_data_ptr<float>();
  }
  Launch(LaunchRmsNormBackward, params, x, "RMSNorm's backward kernel");
  if (wants_gain) {
    const ColumnSumsParams sums = {.rows = params.row_groups,
                                   .width = width,
                                   .partial = params.partial_dgain,
                                   .type = TypeOf(gain_grad.grad),
                                   .accumulate = gain_grad.accumulate,
                                   .sums = gain_grad.grad.mutable_data_ptr()};
    Launch(LaunchColumnSums, sums, x, "The gain gradient's kernel");
  }
}

void Rotate(at::Tensor x, const RopeTable& table, int64_t rotated_heads,
            bool inverse) {
  // The least that the kernel moves is a pair.
  const int64_t pair_bytes = 2 * static_cast<int64_t>(x.element_size());
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % pair_bytes != 0) {
    reference::Rotate(x, table, rotated_heads, inverse);
    return;
  }
  const RopeParams params = {.type = TypeOf(x),
                             .halved = table.layout == RopeLayout::kHalved,
                             .inverse = inverse,
                             .tokens = x.size(0) * x.size(1),
                             .positions = x.size(1),
                             .heads = static_cast<int>(x.size(2)),
                             .rotated_heads = static_cast<int>(rotated_heads),
                             .head_dim = static_cast<int>(x.size(3)),
                             .cos = table.cos.const_data_ptr<float>(),
                             .sin = table.sin.const_data_ptr<float>(),
                             .x = x.mutable_data_ptr()};
  Launch(LaunchRope, params, x, "RoPE's kernel");
}

void SwiGluForward(const at::Tensor& ab, const at::Tensor& h) {
  const at::Tensor rows = ab.contiguous();
  const SwiGluParams params = {.type = TypeOf(ab),
                               .rows = RowCount(ab),
                               .width = ab.size(-1) / 2,
                               .ab = rows.const_data_ptr(),
                               .h = h.mutable_data_ptr()};
  Launch(LaunchSwiGluForward, params, ab, "SwiGLU's kernel");
}

void SwiGluBackward(const at::Tensor& ab, const at::Tensor& dh,
                    at::Tensor d_ab) {
  const at::Tensor rows = ab.contiguous(), dh_rows = dh.contiguous();
  const SwiGluParams params = {.type = TypeOf(ab),
                               .rows = RowCount(ab),
                               .width = ab.size(-1) / 2,
                               .ab = rows.const_data_ptr(),
                               .dh = dh_rows.const_data_ptr(),
                               .d_ab = d_ab.mutable_data_ptr()};
  Launch(LaunchSwiGluBackward, params, ab, "SwiGLU's backward kernel");
}

void CrossEntropyForward(const at::Tensor& logits, const at::Tensor& targets,
                         const at::Tensor& loss, const at::Tensor& lse) {
  if (lse.scalar_type() != at::kFloat) {
    reference::CrossEntropyForward(logits, targets, loss, lse);
    return;
  }
  const at::Tensor rows = logits.contiguous(), ids = targets.contiguous();
  const at::Tensor losses = at::empty({logits.size(0)}, lse.options());
  const CrossEntropyParams params = {
      .type = TypeOf(logits),
      .rows = logits.size(0),
      .vocab = logits.size(1),
      .logits = rows.const_data_ptr(),
      .targets = ids.const_data_ptr<int64_t>(),
      .lse = lse.mutable_data_ptr<float>(),
      .losses = losses.mutable_data_ptr<float>()};
  Launch(LaunchCrossEntropyForward, params, logits, "Cross entropy's kernel");
  at::Tensor sum = loss;
  at::sum_out(sum, losses, at::IntArrayRef{}, /*keepdim=*/false);
}

void CrossEntropyBackward(const at::Tensor& dloss, const at::Tensor& logits,
                          const at::Tensor& targets, const at::Tensor& lse,
                          at::Tensor dlogits) {
  if (lse.scalar_type() != at::kFloat) {
    reference::CrossEntropyBackward(dloss, logits, targets, lse, dlogits);
    return;
  }
  const at::Tensor rows = logits.contiguous(), ids = targets.contiguous();
  const CrossEntropyParams params = {.type = TypeOf(logits),
                                     .rows = logits.size(0),
                                     .vocab = logits.size(1),
                                     .logits = rows.const_data_ptr(),
                                     .targets = ids.const_data_ptr<int64_t>(),
                                     .lse = lse.mutable_data_ptr<float>(),
                                     .dloss = dloss.const_data_ptr<float>(),
                                     .dlogits = dlogits.mutable_data_ptr()};
  Launch(LaunchCrossEntropyBackward, params, logits,
         "Cross entropy's backward kernel");
}

}  // namespace cuda
}  // namespace tessera
