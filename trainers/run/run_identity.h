#ifndef TRAINERS_RUN_RUN_IDENTITY_H_
#define TRAINERS_RUN_RUN_IDENTITY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"
#include "trainers/run/session.h"

namespace tessera {

// Adds to a checkpoint's state everything that decides which tokens a step
// sees.
void AddDataIdentity(const Session& session, nlohmann::json* state);

// DataLoss if the step in the checkpoint's state is not the manifest's.
absl::Status CheckSameStep(const Checkpoint& checkpoint);

// The number of training sequences that the checkpoint's run has consumed.
absl::StatusOr<int64_t> SamplesOf(const Checkpoint& checkpoint);

// InvalidArgument, naming the field to change, if `checkpoint` was trained on
// other data than `data`, or in another order than by `config`: tokens would be
// skipped or repeated.
absl::Status CheckSameData(const Checkpoint& checkpoint,
                           const RunConfig& config, const Dataset& data);

// InvalidArgument, naming the field to change, if the checkpoint's weights have
// the shapes of `model`, but were trained for a different function.
absl::Status CheckSameModel(const Checkpoint& checkpoint,
                            const ModelConfig& model);

// CheckSameModel() for a run that starts from the weights. It may change
// attention_window, rope_theta, rope_scaling, norm_eps and the soft caps, to
// which training adapts, but not the heads, qk_norm or norm_placement.
absl::Status CheckSameHeads(const Checkpoint& checkpoint,
                            const ModelConfig& model);

// The fields of `config` that differ from the checkpoint's, one line each
// ("modified: optimizer.adamw.lr: 0.001 -> 0.05"); empty if there are none.
std::string ConfigChanges(const Checkpoint& checkpoint,
                          const RunConfig& config);

}  // namespace tessera

#endif  // TRAINERS_RUN_RUN_IDENTITY_H_
