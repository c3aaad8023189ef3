#ifndef TRAINERS_RUN_GATHER_STATE_H_
#define TRAINERS_RUN_GATHER_STATE_H_

#include "absl/status/status.h"
#include "trainers/run/training_state.h"

namespace tessera {

// Buffers like the state's, of the sizes that they have if ranks do not divide
// them. What ranks may divide has no memory here.
StateBuffers WholeBuffers(const TrainingState& state);

// Collective, for ranks that divide the state (Sharding): gives `to`, buffers
// in host memory with the sizes of WholeBuffers(), the state of all ranks; null
// on a rank that does not want it. Enqueued on the current stream; page-locked
// memory is complete once that has done its work. Overwrites gradients, so call
// it between steps, with no update pending.
absl::Status GatherState(const TrainingState& state, StateBuffers* to);

}  // namespace tessera

#endif  // TRAINERS_RUN_GATHER_STATE_H_
