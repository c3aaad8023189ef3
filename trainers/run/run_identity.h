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

// Puts into a checkpoint's state what decides which tokens a step sees.
void AddDataIdentity(const Session& session, nlohmann::json* state);

// DataLoss where the state of `checkpoint` is not that of its manifest's step.
absl::Status CheckSameStep(const Checkpoint& checkpoint);

// The training sequences that the run of `checkpoint` has consumed.
absl::StatusOr<int64_t> SamplesOf(const Checkpoint& checkpoint);

// InvalidArgument, naming the field to change, where `checkpoint` was trained
// on other data than the session's, or on the same in another order: tokens
// would be lost or doubled.
absl::Status CheckSameData(const Checkpoint& checkpoint,
                           const Session& session);

// InvalidArgument, naming the field to change, where `checkpoint`'s weights
// fit into `model`, but were trained for another function of the same shapes.
absl::Status CheckSameModel(const Checkpoint& checkpoint,
                            const ModelConfig& model);

// The same for a run that starts from the weights and may adapt them to another
// rope_theta or norm_eps, but not to other heads.
absl::Status CheckSameHeads(const Checkpoint& checkpoint,
                            const ModelConfig& model);

// The fields of `config` that differ from the checkpoint's, a line each
// ("modified: optimizer.adamw.lr: 0.001 -> 0.05"); empty where none does.
std::string ConfigChanges(const Checkpoint& checkpoint,
                          const RunConfig& config);

}  // namespace tessera

#endif  // TRAINERS_RUN_RUN_IDENTITY_H_
