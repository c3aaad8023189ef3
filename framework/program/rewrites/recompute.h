#ifndef FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_
#define FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_

#include "absl/types/span.h"
#include "framework/program/schedule.h"

namespace tessera {

// Ops [first_op, end_op) of a program.
struct RecomputedSegment {
  int first_op = 0, end_op = 0;
};

// Repeats the forward ops of each segment that its backward runs need, before
// the first of those runs, and lets them read the new results. The first
// results can then be dropped after the forward pass, except those that later
// ops read (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016). Results keep their bits. Call it before other rewrites.
void Recompute(absl::Span<const RecomputedSegment> segments,
               Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_
