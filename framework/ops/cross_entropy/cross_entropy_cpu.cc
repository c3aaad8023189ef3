#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/base/vector_math.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/cross_entropy/cross_entropy_kernels.h"
#include "framework/ops/rows.h"

namespace tessera {
namespace cpu {

TESSERA_CPU_CLONES
float LogSumExp(const float* x, int64_t count) {
  const float max = MaxOf(x, count);
  if (std::isinf(max)) return max;
  const float sum = LaneSum(count, [=](int64_t i) TESSERA_INLINE {
    return ExpOfNonPositive(x[i] - max);
  });
  return max + std::log(sum);
}

TESSERA_CPU_CLONES
void ScaledSoftmax(const float* x, float lse, float scale, int64_t count,
                   float* d_x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    d_x[i] = ExpOfNonPositive(x[i] - lse) * scale;
  }
}

}  // namespace cpu
namespace {

void Forward(const at::Tensor& logits, const at::Tensor& targets,
             const at::Tensor& loss, const at::Tensor& lse) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  const float* const from = logits.const_data_ptr<float>();
  float* const to = lse.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    to[row] = cpu::LogSumExp(from + row * width, width);
  });
  loss.copy_(reference::CrossEntropyLoss(logits, targets, lse));
}

void Backward(const at::Tensor& dloss, const at::Tensor& logits,
              const at::Tensor& targets, const at::Tensor& lse,
              at::Tensor dlogits) {
  const int64_t rows = logits.size(0), width = logits.size(1);
  const at::Tensor ids = targets.contiguous();
  const float scale = dloss.item<float>();
  const float* const from = logits.const_data_ptr<float>();
  const float* const sums = lse.const_data_ptr<float>();
  const int64_t* const id = ids.const_data_ptr<int64_t>();
  float* const to = dlogits.mutable_data_ptr<float>();
  ForEachRow(rows, width, [&](int64_t row) {
    float* const d_row = to + row * width;
    const bool counts = id[row] != kIgnoredTarget;
    cpu::ScaledSoftmax(from + row * width, sums[row], counts ? scale : 0, width,
                       d_row);
    if (counts) d_row[id[row]] -= scale;
  });
}

}  // namespace

const CrossEntropyKernels CrossEntropyKernels::kCpu = {.forward = Forward,
                                                       .backward = Backward};

}  // namespace tessera
