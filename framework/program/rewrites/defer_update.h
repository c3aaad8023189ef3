#ifndef FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
#define FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_

#include <cstdint>

#include "framework/program/rewrites/gradient_tasks.h"
#include "framework/program/schedule.h"

namespace tessera {

// Moves the update (Task::Kind::kUpdate) to the beginning of the next step, in
// slices (gradient_tasks.h) on another stream, where the forward pass hides a
// part of it: an op waits only for the slices with the weights that it reads.
// Weights are those of the step before until then (Schedule::starts_pending).
// The forward runs of the first micro-batch leave `spared_multiprocessors` to
// it. Results keep their bits. Call AddDataWaits() afterwards.
void DeferUpdate(Schedule* schedule, int spared_multiprocessors = 0,
                 int64_t slice_bytes = kSliceBytes);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
