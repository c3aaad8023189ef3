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
#include "framework/checkpoint/tensor_files.h"
#include "framework/dist/process_group.h"
#include "framework/optim/optimizer.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "nlohmann/json.hpp"
#include "trainers/run/kept_ranges.h"

namespace tessera {

// The algorithms of a run's matrix products in state.json
// (ProductChoices::record).
inline constexpr char kProductsState[] = "products";

// The parts of a run that change from step to step. They are saved to a
// checkpoint and restored from it bit for bit:
//   model.safetensors      all parameters by name, in the master's dtype
//   optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME of trained ones, or
//                          momentum.NAME of Muon's, with row_exp_avg_sq.NAME of
//                          NorMuon's; either may be several files
//                          (tensor_files.h)
//   ema.safetensors        with an average of the weights (Ema): all parameters
//                          by name, the averages of trained ones
//   state.json             "optimizer_step", "loss_scaler", "random"; checks
//                          kProductsState
// state.json is read through JsonFields, so errors name the field. The position
// in the data is not part of it: it is a pure function of the step, which the
// caller keeps.
struct TrainingState {
  ParameterStore* parameters = nullptr;
  Optimizer* optimizer = nullptr;
  LossScaler* scaler = nullptr;    // null unless the policy scales the loss
  Communicator* shards = nullptr;  // the ranks that divide the state

  bool divided() const { return parameters->sharding().divides_optimizer(); }
};

// The files of a checkpoint's tensors, shared among the ranks that write them.
// The files depend on the tensors only: not on their number of writers, nor on
// the layout.
struct StateFiles {
  std::vector<TensorFile> model, optimizer, ema;
  std::vector<TensorFile> own;  // those of all that this rank writes
};
// The share of rank `index` of `writers`.
absl::StatusOr<StateFiles> ShareState(
    const TrainingState& state, int index = 0, int writers = 1,
    uint64_t max_file_bytes = kMaxTensorFileBytes);

// The buffers of a TrainingState that a checkpoint's tensor files are made of,
// or copies of parts of them in host memory.
struct StateBuffers {
  WeightBuffers weights;  // without the shadow
  at::Tensor exp_avg, exp_avg_sq;
  at::Tensor ema;  // undefined without an average
  // What a copy has of each buffer; the high and low halves of weights have the
  // same places.
  struct Kept {
    KeptRanges master, halves, exp_avg, exp_avg_sq, ema;
  };
  Kept kept;

  std::vector<at::Tensor> Defined() const;
};
StateBuffers BuffersOf(const TrainingState& state);
// What a copy needs for writing `files`.
StateBuffers::Kept KeptFor(const TrainingState& state,
                           const std::vector<TensorFile>& files);

// Adds the files that this rank writes, with the values in `from`:
// BuffersOf(state), or a copy that has them. Writes two at a time, piece by
// piece through host memory; calls the writer's hook from two threads.
absl::Status AddTensors(const TrainingState& state, const StateFiles& files,
                        const StateBuffers& from, CheckpointWriter* writer);
// Adds what else belongs to the tensor files: their indices.
absl::Status AddIndices(const StateFiles& files, CheckpointWriter* writer);
// The contents of state.json. Waits for the device.
nlohmann::json ExportState(const TrainingState& state);

// The fields of a checkpoint's state.json.
JsonFields StateFields(const Checkpoint& checkpoint);

// What decides whether a checkpoint can be restored, known before anything is
// allocated.
struct StateLayout {
  absl::Span<const ParameterSlice> parameters;  // outlive the layout
  at::ScalarType master = at::kFloat;           // of weights and moments
  bool has_scaler = false;
};

// Restores everything, of a divided state what this rank holds, and reads only
// that. Without an average in the checkpoint, that of this run starts from the
// restored weights. InvalidArgument names the tensor if names, shapes or dtypes
// differ from this run's model, and the field if state.json is invalid.
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
