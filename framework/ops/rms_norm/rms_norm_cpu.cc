#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/base/vector_math.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/rms_norm/normalize_row.h"
#include "framework/ops/rms_norm/rms_norm_kernels.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace cpu {

TESSERA_CPU_CLONES
float Normalize(const float* x, const float* gain, float eps, int64_t count,
                float* y) {
  const float squares =
      LaneSum(count, [x](int64_t i) TESSERA_INLINE { return x[i] * x[i]; });
  const float r = 1 / std::sqrt(squares / static_cast<float>(count) + eps);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * r * gain[i];
  return r;
}

TESSERA_CPU_CLONES
void NormalizeGradient(const float* dy, const float* x, const float* gain,
                       float r, int64_t count, float* dx, float* dgain) {
  const float projection = LaneSum(count,
                                   [=](int64_t i) TESSERA_INLINE {
                                     return dy[i] * gain[i] * (x[i] * r);
                                   }) /
                           static_cast<float>(count);
  if (dgain != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) dgain[i] += dy[i] * (x[i] * r);
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    dx[i] = r * (dy[i] * gain[i] - x[i] * r * projection);
  }
}

}  // namespace cpu
namespace {

void Forward(const at::Tensor& x, const RmsNormKernels::Addition&,
             const at::Tensor& gain, double eps, const at::Tensor& y,
             const at::Tensor& r) {
  const int64_t rows = RowCount(x), width = x.size(-1);
  const float* const from = x.const_data_ptr<float>();
  const float* const gains = gain.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  float* const inverse = r.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    inverse[row] =
        cpu::Normalize(from + row * width, gains, static_cast<float>(eps),
                       width, to + row * width);
  });
}

void Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& r,
              const at::Tensor& gain, const GradTarget& gain_grad,
              const at::Tensor& dx, const RmsNormKernels::AdditionGradient&) {
  const int64_t rows = RowCount(x), width = x.size(-1);
  const at::Tensor dy_rows = dy.contiguous();
  const at::Tensor d_x = dx.defined() ? dx : at::empty_like(x);
  const int64_t sums = (rows + kCpuRowsPerSum - 1) / kCpuRowsPerSum;
  at::Tensor partial;
  if (gain_grad.grad.defined()) partial = at::zeros({sums, width}, x.options());
  const float* const gradient = dy_rows.const_data_ptr<float>();
  const float* const from = x.const_data_ptr<float>();
  const float* const inverse = r.const_data_ptr<float>();
  const float* const gains = gain.const_data_ptr<float>();
  float* const to = d_x.mutable_data_ptr<float>();
  float* const dgain =
      partial.defined() ? partial.mutable_data_ptr<float>() : nullptr;
  ForEachRow(sums, kCpuRowsPerSum * width, [&](int64_t sum) {
    const int64_t end = std::min(rows, (sum + 1) * kCpuRowsPerSum);
    for (int64_t row = sum * kCpuRowsPerSum; row < end; ++row) {
      const int64_t offset = row * width;
      cpu::NormalizeGradient(gradient + offset, from + offset, gains,
                             inverse[row], width, to + offset,
                             dgain == nullptr ? nullptr : dgain + sum * width);
    }
  });
  if (partial.defined()) WriteGrad(gain_grad, partial.sum(0));
}

}  // namespace

const RmsNormKernels RmsNormKernels::kCpu = {.forward = Forward,
                                             .backward = Backward};

}  // namespace tessera
