#ifndef TRAINERS_RUN_TRAINING_STATE_H_
#define TRAINERS_RUN_TRAINING_STATE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/base/json_fields.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/optim/adamw.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The parts of a run that change from step to step, and how they go into a
// checkpoint and come back bit for bit:
//   model.safetensors      every parameter by its name, the master's dtype
//   optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME of trained ones
//   state.json             "optimizer_step", "loss_scaler", "random"
// All of state.json is read through JsonFields, so that what is wrong there is
// an error that names the field.
// The data's position is a pure function of the step, which the caller keeps.
struct TrainingState {
  ParameterStore* parameters = nullptr;
  AdamW* optimizer = nullptr;
  LossScaler* scaler = nullptr;  // null unless the policy scales the loss
};

// Adds both tensor files, side by side and piece by piece through host memory.
// The writer's hook is called from two threads.
absl::Status AddTensors(const TrainingState& state, CheckpointWriter* writer);
// What belongs into state.json. Waits for the device.
nlohmann::json ExportState(const TrainingState& state);

// The fields of a checkpoint's state.json.
JsonFields StateFields(const Checkpoint& checkpoint);

// Puts everything back. InvalidArgument, naming the tensor, when names, shapes
// or dtypes are not the ones of this run's model, and naming the field when one
// of state.json is not what it must be.
absl::Status Restore(const Checkpoint& checkpoint, const TrainingState& state);

// Only the parameters, for a model that does not resume the checkpoint's run:
// of any floating-point dtype, rounded to the model's.
absl::Status RestoreParameters(const Checkpoint& checkpoint,
                               ParameterStore* parameters);

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAINING_STATE_H_
