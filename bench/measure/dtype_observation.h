#ifndef BENCH_MEASURE_DTYPE_OBSERVATION_H_
#define BENCH_MEASURE_DTYPE_OBSERVATION_H_

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainers/plan/run_plan.h"
#include "trainers/run/session.h"

namespace tessera {

// Dtypes by name ("FP32"), read from tensors after a forward and a backward
// pass on `target`. The model is a linear layer 20 -> 10, ReLU, LayerNorm, a
// linear layer 10 -> 5 and cross-entropy. Figures: parameters, fc1,
// norm_statistics, norm, logits, loss, gradients.
absl::StatusOr<nlohmann::ordered_json> ToyModelDtypes(
    const ProgramTarget& target);

// The same of a language model: of the session's buffers, and of the values
// that its ops read and write. A part that the program does not have is absent:
// only some attention backends keep softmax's sums.
nlohmann::ordered_json LanguageModelDtypes(Session& session);

}  // namespace tessera

#endif  // BENCH_MEASURE_DTYPE_OBSERVATION_H_
