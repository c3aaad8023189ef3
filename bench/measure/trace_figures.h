#ifndef BENCH_MEASURE_TRACE_FIGURES_H_
#define BENCH_MEASURE_TRACE_FIGURES_H_

#include <cstddef>
#include <cstdint>

#include "nlohmann/json.hpp"

namespace tessera {

// The figures of a study from a trace of steps of a model with this head
// dimension, given as ProfileToJson(). Figures are those of its "step", with
// lists of named things as objects of {ms, pct}, and
//   kernels     [{name, class, op, ms, share_pct, instances, mean_us}]
//   non_gemm    those of other classes than GEMM above 0.5 %
//   attention   by phase, means over the layers: {ms, scores_ms, softmax_ms,
//               values_ms, softmax_time_pct, softmax_flops_pct (both of the
//               scores' and values' products), tflops, linear_tflops,
//               beside_products_pct}
//   gaps        {host_wait_ms, kernel_wait_ms, other_ms} in which the device
//               is idle, of one step
//   idle        IdleTimeToJson(), of all steps
// attention.beside_products_pct is the part of attention's time that its
// products do not explain: they would take the rest at the rate of the phase's
// linear layers. Their FLOPs are those of the pairs that the mask leaves.
// A backend that computes scores, softmax and values in one kernel has no
// times of them.
nlohmann::ordered_json TraceFigures(nlohmann::ordered_json profile,
                                    int64_t head_dim);

// Of the same profile, the `most` kernels that take longest, the longest first,
// with their counters and share_pct.
nlohmann::ordered_json LongestKernels(nlohmann::ordered_json profile,
                                      size_t most);

}  // namespace tessera

#endif  // BENCH_MEASURE_TRACE_FIGURES_H_
