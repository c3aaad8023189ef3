#ifndef FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_
#define FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_

#include "framework/program/schedule.h"

namespace tessera {

// Moves each sum over the ranks (Task::Kind::kReduce) to directly after the
// last run that writes a gradient in its range, on another stream, so that it
// overlaps with the rest of the backward pass. The sum of the loss waits for
// the last of them, because a communicator serves one stream at a time. All
// ranks plan the same order. Results keep their bits. Call AddDataWaits()
// afterwards.
void ReduceEarly(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_
