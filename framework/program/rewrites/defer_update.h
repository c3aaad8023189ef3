#ifndef FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
#define FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_

#include <cstdint>

#include "framework/program/schedule.h"

namespace tessera {

// Bytes of gradients that a slice has at least. On an H200 the weights of 64
// MiB are updated in 0.2 ms, twenty times what it costs to launch a slice.
inline constexpr int64_t kSliceBytes = int64_t{1} << 26;

// Moves the update (Task::Kind::kUpdate) to the beginning of the next step, in
// slices that end with a parameter on a stream of its own, where the forward
// pass hides a part of it: an op waits only for the slices with the weights
// that it reads. Weights are those of the step before until then
// (Schedule::starts_pending). The forward runs of the first micro-batch leave
// `spared_multiprocessors` to it. Results keep their bits. Call AddDataWaits()
// afterwards.
void DeferUpdate(Schedule* schedule, int spared_multiprocessors = 0,
                 int64_t slice_bytes = kSliceBytes);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_DEFER_UPDATE_H_
