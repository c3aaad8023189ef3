#ifndef BENCH_MEASURE_UTILISATION_H_
#define BENCH_MEASURE_UTILISATION_H_

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainers/run/session.h"

namespace tessera {

// How much of the device the session's work uses. Each piece of work is
// repeated for about a second on a GPU, and its sensors are read meanwhile:
// - a square GEMM and a copy, which are the measured ceilings;
// - each linear layer and attention alone, forward and backward; attention is
//   measured for each window that the model uses;
// - a forward pass as evaluation runs it;
// - forward and backward together;
// - the step.
// Figures:
//   gemm_tflops, copy_gb_per_s   the ceilings
//   work   [{work, ms, tflops, ceiling_pct, gb_per_s, copy_pct, flop_per_byte,
//          sm_mhz, power_w, tensor_pct, dram_pct, joules, joules_per_token}]
//   roof   [{flop_per_byte, tflops}], the ceilings as a line
// FLOPs are those of matrix products; bytes the least that must move: each
// operand read and each result written once. Joules are of one repetition.
// What the device does not report, and what does not apply, is absent.
absl::StatusOr<nlohmann::ordered_json> MeasureUtilisation(Session& session);

}  // namespace tessera

#endif  // BENCH_MEASURE_UTILISATION_H_
