#ifndef TRAINERS_RUN_NON_FINITE_DIAGNOSIS_H_
#define TRAINERS_RUN_NON_FINITE_DIAGNOSIS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "trainers/run/session.h"

namespace tessera {

// Aborted if the loss or a gradient of a step was not finite (see
// TrainStep::first_bad_step()). The message names the step, the first bad
// parameter and what to change; to find the parameter, the step's gradients are
// recomputed from its batch. `steps` steps are done and have consumed `samples`
// training sequences. Collective over the ranks; waits for the device.
absl::Status CheckFinite(Session& session, int64_t steps, int64_t samples);

}  // namespace tessera

#endif  // TRAINERS_RUN_NON_FINITE_DIAGNOSIS_H_
