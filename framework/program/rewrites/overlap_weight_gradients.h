#ifndef FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_
#define FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_

#include "framework/program/schedule.h"

namespace tessera {

// Splits each backward run whose op allows it (Op::separable()) and that
// computes gradients of both weights and values. Those of the weights move to a
// second stream, because only the update waits for them. The main stream is at
// most two of them ahead; what they read stays alive longer. Call it before
// rewrites that add waits, and AddDataWaits() afterwards.
void OverlapWeightGradients(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_OVERLAP_WEIGHT_GRADIENTS_H_
