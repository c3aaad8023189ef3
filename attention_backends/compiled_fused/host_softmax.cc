#include "attention_backends/compiled_fused/host_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "framework/base/vector_math.h"

namespace tessera {
namespace fused {
namespace {

TESSERA_CPU_CLONES
float ExpInPlace(float max, int64_t count, float* x) {
  return LaneSum(count, [=](int64_t i) TESSERA_INLINE {
    return x[i] = ExpOfNonPositive(x[i] - max);
  });
}
double ExpInPlace(double max, int64_t count, double* x) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = std::exp(x[i] - max);
    sum += x[i];
  }
  return sum;
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
  // MaxOf() may ignore a NaN; the sum is NaN then.
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
