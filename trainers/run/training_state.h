#ifndef TRAINERS_RUN_TRAINING_STATE_H_
#define TRAINERS_RUN_TRAINING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/ScalarType.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/base/json_fields.h"
#include "framework/checkpoint/checkpoint.h"
#include "framework/dist/process_group.h"
#include "framework/optim/adamw.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "nlohmann/json.hpp"

namespace tessera {

// The algorithms of a run's matrix products in state.json
// (ProductChoices::record).
inline constexpr char kProductsState[] = "products";

// The parts of a run that change from step to step. They are saved to a
// checkpoint and restored from it bit for bit:
//   model.safetensors      all parameters by name, in the master's dtype
//   optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME of trained ones
//   state.json             "optimizer_step", "loss_scaler", "random"; checks
//                          kProductsState
// state.json is read through JsonFields, so errors name the field. The position
// in the data is not part of it: it is a pure function of the step, which the
// caller keeps.
struct TrainingState {
  ParameterStore* parameters = nullptr;
  AdamW* optimizer = nullptr;
  LossScaler* scaler = nullptr;    // null unless the policy scales the loss
  Communicator* shards = nullptr;  // the ranks that divide the state

  bool divided() const { return parameters->sharding().divides_optimizer(); }
};

// The buffers of a TrainingState that a checkpoint's tensor files are made of,
// or copies of them in host memory.
struct StateBuffers {
  WeightBuffers weights;  // without the shadow
  at::Tensor exp_avg, exp_avg_sq;

  std::vector<at::Tensor> Defined() const;
};
StateBuffers BuffersOf(const TrainingState& state);

// Adds both tensor files, with the values in `from`: BuffersOf(state), or
// copies. Writes them in parallel, piece by piece through host memory; calls
// the writer's hook from two threads.
absl::Status AddTensors(const TrainingState& state, const StateBuffers& from,
                        CheckpointWriter* writer);
absl::Status AddTensors(const TrainingState& state, CheckpointWriter* writer);
// The contents of state.json. Waits for the device.
nlohmann::json ExportState(const TrainingState& state);

// The fields of a checkpoint's state.json.
JsonFields StateFields(const Checkpoint& checkpoint);

// What decides whether a checkpoint can be restored, known before anything is
// allocated.
struct StateLayout {
  std::vector<ParameterSlice> parameters;
  at::ScalarType master = at::kFloat;  // of weights and moments
  bool has_scaler = false;
};

// Restores everything, of a divided state what this rank holds. InvalidArgument
// names the tensor if names, shapes or dtypes differ from this run's model, and
// the field if state.json is invalid.
absl::Status Restore(const Checkpoint& checkpoint, const TrainingState& state);
// The checks of Restore().
absl::Status CheckRestore(const Checkpoint& checkpoint,
                          const StateLayout& layout);

// Restores only the parameters, for a model that does not resume the run. The
// stored dtype may be any floating-point one; values are rounded to the
// model's.
absl::Status RestoreParameters(const Checkpoint& checkpoint,
                               ParameterStore* parameters);
// The checks of RestoreParameters().
absl::Status CheckRestoreParameters(const Checkpoint& checkpoint,
                                    const StateLayout& layout);

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAINING_STATE_H_
