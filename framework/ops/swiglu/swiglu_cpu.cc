#include <cmath>
#include <cstdint>

#include "ATen/ATen.h"
#include "framework/base/vector_math.h"
#include "framework/ops/cpu_rows.h"
#include "framework/ops/rows.h"
#include "framework/ops/swiglu/swiglu_kernels.h"

namespace tessera {
namespace cpu {

// 1 / (1 + exp(-x)) without overflow.
__attribute__((always_inline)) inline float Sigmoid(float x) {
  const float e = ExpOfNonPositive(-std::fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

TESSERA_CPU_CLONES
void SwiGlu(const float* a, const float* b, int64_t count, float* h) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) h[i] = a[i] * Sigmoid(a[i]) * b[i];
}

TESSERA_CPU_CLONES
void SwiGluGradient(const float* a, const float* b, const float* dh,
                    int64_t count, float* d_a, float* d_b) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = a[i], sigma = Sigmoid(x), gated = dh[i] * sigma;
    d_a[i] = gated * b[i] * (1 + x * (1 - sigma));
    d_b[i] = gated * x;
  }
}

}  // namespace cpu
namespace {

void Forward(const at::Tensor& ab, const at::Tensor& h) {
  const int64_t width = ab.size(-1) / 2;
  const float* const from = ab.const_data_ptr<float>();
  float* const to = h.mutable_data_ptr<float>();
  ForEachRow(RowCount(ab), width, [&](int64_t row) {
    const float* const a = from + row * 2 * width;
    cpu::SwiGlu(a, a + width, width, to + row * width);
  });
}

void Backward(const at::Tensor& ab, const at::Tensor& dh, at::Tensor d_ab) {
  const int64_t width = ab.size(-1) / 2;
  const at::Tensor dh_rows = dh.contiguous();
  const float* const from = ab.const_data_ptr<float>();
  const float* const gradient = dh_rows.const_data_ptr<float>();
  float* const to = d_ab.mutable_data_ptr<float>();
  ForEachRow(RowCount(ab), width, [&](int64_t row) {
    const float* const a = from + row * 2 * width;
    float* const d_a = to + row * 2 * width;
    cpu::SwiGluGradient(a, a + width, gradient + row * width, width, d_a,
                        d_a + width);
  });
}

}  // namespace

const SwiGluKernels SwiGluKernels::kCpu = {.forward = Forward,
                                           .backward = Backward};

}  // namespace tessera
