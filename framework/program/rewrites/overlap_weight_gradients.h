#ifndef FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_
#define FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_

#include "framework/program/schedule.h"

namespace tessera {

// Gives the gradient of a weight, which only the optimizer waits for, a run of
// its own on a stream of its own where its op allows it (Op::separable()). At
// most two are under way at once. What they read lives longer for it. Needs
// AddDataWaits() afterwards.
void OverlapWeightGradients(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_
