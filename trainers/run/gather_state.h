#ifndef TRAINERS_RUN_GATHER_STATE_H_
#define TRAINERS_RUN_GATHER_STATE_H_

#include "absl/status/status.h"
#include "trainers/run/training_state.h"

namespace tessera {

// Sizes of the state's buffers as if ranks did not divide them: undefined where
// the state has none; without memory.
StateBuffers WholeBuffers(const TrainingState& state);

// Collective, for ranks that divide the state (Sharding): gives `to`, buffers
// in host memory with the sizes of WholeBuffers(), the state of all ranks; null
// on a rank that does not want it. Enqueued on the current stream; page-locked
// memory is complete once that has done its work. Overwrites gradients, so call
// it between steps, with no update pending.
absl::Status GatherState(const TrainingState& state, StateBuffers* to);

}  // namespace tessera

#endif  // TRAINERS_RUN_GATHER_STATE_H_
