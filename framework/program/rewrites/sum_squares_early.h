#ifndef FRAMEWORK_PROGRAM_REWRITES_SUM_SQUARES_EARLY_H_
#define FRAMEWORK_PROGRAM_REWRITES_SUM_SQUARES_EARLY_H_

#include <cstdint>

#include "framework/program/rewrites/gradient_tasks.h"
#include "framework/program/schedule.h"

namespace tessera {

// Sums the squares of gradients (Task::Kind::kSumOfSquares) in slices
// (gradient_tasks.h), each as soon as its last gradient is final: written, or
// summed over the ranks. This is done on another stream, beside the rest of the
// backward pass. Results keep their bits. Call it after ReduceEarly(), and
// AddDataWaits() afterwards.
void SumSquaresEarly(Schedule* schedule, int64_t slice_bytes = kSliceBytes);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_SUM_SQUARES_EARLY_H_
