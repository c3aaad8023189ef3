#ifndef FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_
#define FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_

#include "framework/program/schedule.h"

namespace tessera {

// Moves each sum over the ranks (Task::Kind::kReduce) to right behind the last
// run that writes a gradient in its range, on a stream of its own, so that it
// runs beside the rest of the backward pass. All ranks plan the same order.
// Changes no bit. Needs AddDataWaits() afterwards.
void ReduceEarly(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_REDUCE_EARLY_H_
