#include <cstdint>

#include "ATen/ATen.h"
#include "ATen/cuda/CUDAContext.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/float_type_of.h"
#include "framework/cuda/launch.h"
#include "framework/ops/qk_norm/qk_norm_kernels.h"
#include "framework/ops/qk_norm/qk_norm_launch.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"
#include "framework/ops/rms_norm/rms_norm_launch.h"

namespace tessera {
namespace {

using Sections = QkNormKernels::Sections;

constexpr int kNormalised = 2;  // sections: queries and keys

// The gains in FP32.
struct WideGains {
  at::Tensor of[kNormalised];
};

WideGains Widen(Sections sections) {
  WideGains wide;
  for (int i = 0; i < kNormalised; ++i) {
    wide.of[i] = sections[i].gain.to(at::kFloat);
  }
  return wide;
}

// The parameters of both passes.
QkNormParams ParamsFor(const at::Tensor& qkv, Sections sections,
                       const WideGains& gains) {
  QkNormParams params = {.type = FloatTypeOf(qkv),
                         .token_stride = qkv.size(2) * qkv.size(3),
                         .x = qkv.const_data_ptr()};
  for (int i = 0; i < kNormalised; ++i) {
    params.sections[i] = {.offset = sections[i].offset,
                          .rows_per_token = sections[i].rows_per_token,
                          .rows = sections[i].rows(),
                          .width = sections[i].width,
                          .gain = gains.of[i].const_data_ptr<float>(),
                          .r = sections[i].r.mutable_data_ptr<float>()};
  }
  return params;
}

void Forward(const at::Tensor& qkv, Sections sections, double eps,
             const at::Tensor& y) {
  const WideGains gains = Widen(sections);
  QkNormParams params = ParamsFor(qkv, sections, gains);
  params.eps = static_cast<float>(eps);
  params.y = y.mutable_data_ptr();
  if (!InPlace(qkv, y)) {
    // The values have the keys' size.
    QkNormParams::Section& values = params.sections[kNormalised];
    values = params.sections[1];
    values.offset = ValuesOffset(sections);
    values.gain = nullptr;
  }
  ThrowIfError(Launch(qkv, "QK-norm's kernel", LaunchQkNormForward, params));
}

void SumGainGradient(const at::Tensor& on, const QkNormParams::Section& section,
                     const GradTarget& target) {
  const ColumnSumsParams sums = {.rows = section.blocks,
                                 .width = section.width,
                                 .partial = section.partial_dgain,
                                 .type = FloatTypeOf(target.grad),
                                 .accumulate = target.accumulate,
                                 .sums = target.grad.mutable_data_ptr()};
  ThrowIfError(
      Launch(on, "The gain gradient's kernel", LaunchColumnSums, sums));
}

void Backward(const at::Tensor& dy, const at::Tensor& qkv, Sections sections,
              const at::Tensor& dx) {
  CopyValues(dy, sections, dx);  // rarely: as a rule, dx is dy
  const WideGains gains = Widen(sections);
  QkNormParams params = ParamsFor(qkv, sections, gains);
  params.dy = dy.const_data_ptr();
  params.dx = dx.mutable_data_ptr();
  const int multiprocessors =
      at::cuda::getDeviceProperties(qkv.get_device())->multiProcessorCount;
  at::Tensor partial[kNormalised];
  for (int i = 0; i < kNormalised; ++i) {
    QkNormParams::Section& section = params.sections[i];
    section.blocks =
        static_cast<int>(CudaPartialSums(section.rows, multiprocessors));
    if (!sections[i].gain_grad.grad.defined()) continue;
    partial[i] =
        at::empty({section.blocks, section.width}, sections[i].r.options());
    section.partial_dgain = partial[i].mutable_data_ptr<float>();
  }
  ThrowIfError(
      Launch(qkv, "QK-norm's backward kernel", LaunchQkNormBackward, params));
  for (int i = 0; i < kNormalised; ++i) {
    if (!partial[i].defined()) continue;
    SumGainGradient(qkv, params.sections[i], sections[i].gain_grad);
  }
}

}  // namespace

const QkNormKernels QkNormKernels::kCuda = {.forward = Forward,
                                            .backward = Backward};

}  // namespace tessera
