#ifndef ATTENTION_BACKENDS_COMPILED_FUSED_HOST_SOFTMAX_H_
#define ATTENTION_BACKENDS_COMPILED_FUSED_HOST_SOFTMAX_H_

#include <cstdint>

#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"

namespace tessera {
namespace fused {

// The kernels' equations for one row on a CPU, in loops that the compiler
// vectorises. T is float, double, c10::BFloat16 or c10::Half; statistics and
// arithmetic are FP32, FP64 for double.
template <typename T>
struct HostStatistic {
  using Type = float;
};
template <>
struct HostStatistic<double> {
  using Type = double;
};

struct RowExtent {
  int64_t visible = 0;  // leading scores that the query sees
  int64_t written = 0;  // >= visible; the scores in between become zeros
};

// Replaces S by P in row: [written]; returns L. scratch: [visible] statistics;
// unused if T is its own statistic.
template <typename T>
typename HostStatistic<T>::Type HostSoftmaxRow(
    const RowExtent& extent, typename HostStatistic<T>::Type* scratch, T* row);

// Replaces dP by dS = P o (dP - delta) in d_p: [written].
template <typename T>
void HostSoftmaxBackwardRow(const RowExtent& extent, const T* p,
                            typename HostStatistic<T>::Type delta, T* d_p);

// sum_i a_i b_i.
template <typename T>
typename HostStatistic<T>::Type HostDot(const T* a, const T* b, int64_t count);

}  // namespace fused
}  // namespace tessera

#endif  // ATTENTION_BACKENDS_COMPILED_FUSED_HOST_SOFTMAX_H_
