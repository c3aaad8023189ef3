#include <algorithm>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/qk_norm/qk_norm_kernels.h"
#include "framework/ops/rms_norm/normalize_row.h"

namespace tessera {
namespace {

using Sections = QkNormKernels::Sections;

int64_t TokenStride(const at::Tensor& x) { return x.size(2) * x.size(3); }

// Offset of a section's row in a tensor.
int64_t OffsetOf(const QkNormSection& section, int64_t row, int64_t stride) {
  return row / section.rows_per_token * stride + section.offset +
         row % section.rows_per_token * section.width;
}

void Forward(const at::Tensor& qkv, Sections sections, double eps,
             const at::Tensor& y) {
  CopyValues(qkv, sections, y);
  const int64_t stride = TokenStride(qkv);
  const float* const from = qkv.const_data_ptr<float>();
  float* const to = y.mutable_data_ptr<float>();
  for (const QkNormSection& section : sections) {
    const float* const gain = section.gain.const_data_ptr<float>();
    float* const r = section.r.mutable_data_ptr<float>();
    ForEachRow(section.rows(), section.width, [&](int64_t row) {
      const int64_t offset = OffsetOf(section, row, stride);
      r[row] = cpu::Normalize(from + offset, gain, static_cast<float>(eps),
                              section.width, to + offset);
    });
  }
}

void Backward(const at::Tensor& dy, const at::Tensor& qkv, Sections sections,
              const at::Tensor& dx) {
  CopyValues(dy, sections, dx);
  const int64_t stride = TokenStride(qkv);
  const float* const gradient = dy.const_data_ptr<float>();
  const float* const from = qkv.const_data_ptr<float>();
  float* const to = dx.mutable_data_ptr<float>();
  for (const QkNormSection& section : sections) {
    const int64_t rows = section.rows(), width = section.width;
    const int64_t sums = QkNormCpuSums(rows);
    at::Tensor partial;
    if (section.gain_grad.grad.defined()) {
      partial = at::zeros({sums, width}, qkv.options());
    }
    const float* const gain = section.gain.const_data_ptr<float>();
    const float* const r = section.r.const_data_ptr<float>();
    float* const dgain =
        partial.defined() ? partial.mutable_data_ptr<float>() : nullptr;
    ForEachRow(sums, kQkNormCpuRowsPerSum * width, [&](int64_t sum) {
      const int64_t end = std::min(rows, (sum + 1) * kQkNormCpuRowsPerSum);
      for (int64_t row = sum * kQkNormCpuRowsPerSum; row < end; ++row) {
        const int64_t at = OffsetOf(section, row, stride);
        cpu::NormalizeGradient(
            gradient + at, from + at, gain, r[row], width, to + at,
            dgain == nullptr ? nullptr : dgain + sum * width);
      }
    });
    if (partial.defined()) WriteGrad(section.gain_grad, partial.sum(0));
  }
}

}  // namespace

const QkNormKernels QkNormKernels::kCpu = {.forward = Forward,
                                           .backward = Backward};

}  // namespace tessera
