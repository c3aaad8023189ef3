#ifndef FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
#define FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_

#include <cstdint>

#include "framework/program/schedule.h"

namespace tessera {

// The least number of bytes of gradients in a slice, except the last. On an
// H200, updating the weights of 64 MiB of gradients takes 0.2 ms, twenty times
// the launch of a slice.
inline constexpr int64_t kSliceBytes = int64_t{1} << 26;

// Moves the update (Task::Kind::kUpdate) to the beginning of the next step,
// onto a stream of its own, beside the forward pass. It is cut into slices
// where parameters begin unless it is not Task::divisible, and an op waits only
// for the slices that hold its weights. If ranks divide the state, slices are
// sections, and each is gathered as soon as it is updated. Until its slice has
// run, a weight has the value of the step before (Schedule::starts_pending).
// The forward runs of the first micro-batch leave `spared_multiprocessors` to
// the update. Results keep their bits. Call AddDataWaits() afterwards.
void DeferUpdate(Schedule* schedule, int spared_multiprocessors = 0,
                 int64_t slice_bytes = kSliceBytes);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
