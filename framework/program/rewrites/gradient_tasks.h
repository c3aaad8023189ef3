#ifndef FRAMEWORK_PROGRAM_REWRITES_GRADIENT_TASKS_H_
#define FRAMEWORK_PROGRAM_REWRITES_GRADIENT_TASKS_H_

#include <cstdint>
#include <vector>

#include "framework/program/schedule.h"

namespace tessera {

// What rewrites that move tasks over gradients have in common.

// Bytes of gradients that a slice has at least. On an H200 64 MiB are read in
// 0.02 ms, and their weights updated in 0.2 ms: more than it costs to launch.
inline constexpr int64_t kSliceBytes = int64_t{1} << 26;

// Cuts the range of a task's run, where gradients of parameters begin, into
// slices of at least `slice_bytes`; the last may be smaller. Adds their tasks
// to `schedule`, whose runs stay as they are.
std::vector<StepRun> SlicesOf(const StepRun& run, int64_t slice_bytes,
                              Schedule* schedule);

// Moves each task of `kind`, on `stream`, to directly after the last run before
// it that writes a gradient in its range. A task whose gradients no run writes
// stays. Renumbers waits.
void MoveToLastWrite(Task::Kind kind, StepStream stream, Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_GRADIENT_TASKS_H_
