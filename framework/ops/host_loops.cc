#include "framework/ops/host_loops.h"

#include <cmath>
#include <cstdint>

#include "framework/base/vector_math.h"

namespace tessera {
namespace host {
namespace {

// 1 / (1 + exp(-x)) without overflow.
__attribute__((always_inline)) inline float Sigmoid(float x) {
  const float e = ExpOfNonPositive(-std::fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}

// (u, v) times cos + i sin.
__attribute__((always_inline)) inline void RotatePair(float cos, float sin,
                                                      float& u, float& v) {
  const float rotated_u = u * cos - v * sin;
  v = v * cos + u * sin;
  u = rotated_u;
}

}  // namespace

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
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    dx[i] = r * (dy[i] * gain[i] - x[i] * r * projection);
  }
  if (dgain == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) dgain[i] += dy[i] * (x[i] * r);
}

TESSERA_CPU_CLONES
void RotateInterleaved(const float* cos, const float* sin, float sign,
                       int64_t pairs, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    RotatePair(cos[i], sign * sin[i], x[2 * i], x[2 * i + 1]);
  }
}

TESSERA_CPU_CLONES
void RotateHalved(const float* cos, const float* sin, float sign, int64_t pairs,
                  float* x) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    RotatePair(cos[i], sign * sin[i], x[i], x[pairs + i]);
  }
}

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

}  // namespace host
}  // namespace tessera
