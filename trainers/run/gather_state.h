#ifndef TRAINERS_RUN_GATHER_STATE_H_
#define TRAINERS_RUN_GATHER_STATE_H_

#include "absl/status/status.h"
#include "trainers/run/training_state.h"

namespace tessera {

// Copies to `to`, in host memory, what it keeps (StateBuffers::kept) of the
// parts of the state that this rank has whole. Enqueued on the current stream;
// throws LibTorch's exceptions.
void CopyWhole(const TrainingState& state, const StateBuffers& to);

// Collective, for ranks that divide the state (Sharding): CopyWhole(), and what
// `to` keeps of the parts that any of the ranks has. `to` may be empty, on a
// rank that needs nothing. Page-locked memory is complete once the current
// stream has done its work. Overwrites gradients, so call it between steps,
// with no update pending.
absl::Status GatherState(const TrainingState& state, const StateBuffers& to);

}  // namespace tessera

#endif  // TRAINERS_RUN_GATHER_STATE_H_
