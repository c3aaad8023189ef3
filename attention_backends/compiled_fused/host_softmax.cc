#include "attention_backends/compiled_fused/host_softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

// The build compiles this file with -O3 -fopenmp-simd -fno-trapping-math: the
// pragmas allow sums in another order, and comparisons become selections, not
// branches. Clones for CPUs with AVX2 and AVX-512 are chosen when the program
// starts, which is before sanitizers can bear it.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v3", "arch=x86-64-v4", "default")))
#else
#define TESSERA_CPU_CLONES
#endif

namespace tessera {
namespace fused {
namespace {

// exp(x) for x <= 0, to an FP32 rounding or two; 0 below the least normal
// number, NaN for NaN. 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2: ln 2
// in two parts, of which n times the first is exact (Cody and Waite), and
// e^r by its Taylor polynomial, whose first missing term is below 2^-24 / 10.
// No branch, so that loops over it are vectorised.
__attribute__((always_inline)) inline float ExpOfNonPositive(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer
  constexpr float kLeast = -88;        // n = -127, for which `power` is 0
  const float clamped = x < kLeast ? kLeast : x;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float y = 1.0f / 5040;
  y = y * r + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1;
  y = y * r + 1;
  // The low bits of `shifted` are n.
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127) << 23;
  return y * std::bit_cast<float>(power);
}

TESSERA_CPU_CLONES
float ExpInPlace(float max, int64_t count, float* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    x[i] = ExpOfNonPositive(x[i] - max);
    sum += x[i];
  }
  return sum;
}
double ExpInPlace(double max, int64_t count, double* x) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = std::exp(x[i] - max);
    sum += x[i];
  }
  return sum;
}

// In lanes, because max() as NaN defines it may not be reordered: whether a NaN
// is passed over or returned does not matter, for the sum will be one.
template <typename S>
S MaxOf(const S* x, int64_t count) {
  constexpr int kLanes = 16;
  S lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<S>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] = std::max(lanes[k], x[i + k]);
  }
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

template <typename T>
typename HostStatistic<T>::Type HostSoftmaxRow(
    const RowExtent& extent, typename HostStatistic<T>::Type* scratch, T* row) {
  using S = typename HostStatistic<T>::Type;
  S* x = scratch;
  if constexpr (std::is_same_v<S, T>) {
    x = row;
  } else {
    for (int64_t i = 0; i < extent.visible; ++i) x[i] = static_cast<S>(row[i]);
  }
  const S max = MaxOf(x, extent.visible);
  std::fill(row + extent.visible, row + extent.written, static_cast<T>(0));
  if (max == -std::numeric_limits<S>::infinity()) {
    std::fill(row, row + extent.visible, static_cast<T>(0));
    return max;
  }
  const S sum = ExpInPlace(max, extent.visible, x);
  const S factor = 1 / sum;
  for (int64_t i = 0; i < extent.visible; ++i) {
    row[i] = static_cast<T>(x[i] * factor);
  }
  return max + std::log(sum);
}

template <typename T>
void HostSoftmaxBackwardRow(const RowExtent& extent, const T* p,
                            typename HostStatistic<T>::Type delta, T* d_p) {
  using S = typename HostStatistic<T>::Type;
  for (int64_t i = 0; i < extent.visible; ++i) {
    d_p[i] =
        static_cast<T>(static_cast<S>(p[i]) * (static_cast<S>(d_p[i]) - delta));
  }
  std::fill(d_p + extent.visible, d_p + extent.written, static_cast<T>(0));
}

template <typename T>
typename HostStatistic<T>::Type HostDot(const T* a, const T* b, int64_t count) {
  using S = typename HostStatistic<T>::Type;
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<S>(a[i]) * static_cast<S>(b[i]);
  }
  return sum;
}

#define TESSERA_INSTANTIATE(T)                                                 \
  template HostStatistic<T>::Type HostSoftmaxRow(const RowExtent&,             \
                                                 HostStatistic<T>::Type*, T*); \
  template void HostSoftmaxBackwardRow(const RowExtent&, const T*,             \
                                       HostStatistic<T>::Type, T*);            \
  template HostStatistic<T>::Type HostDot(const T*, const T*, int64_t);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
TESSERA_INSTANTIATE(c10::BFloat16)
TESSERA_INSTANTIATE(c10::Half)
#undef TESSERA_INSTANTIATE

}  // namespace fused
}  // namespace tessera
