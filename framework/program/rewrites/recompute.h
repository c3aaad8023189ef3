#ifndef FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_
#define FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_

#include "absl/types/span.h"
#include "framework/program/schedule.h"

namespace tessera {

// Ops [first_op, end_op) of a program.
struct RecomputedSegment {
  int first_op = 0, end_op = 0;
};

// Before the first backward run of each segment, repeats the forward runs whose
// results the segment's backward runs read, which then read the copies. So the
// results are dropped after the forward pass, except those that later ops read
// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Results
// keep their bits. Call it before other rewrites.
void Recompute(absl::Span<const RecomputedSegment> segments,
               Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_REWRITES_RECOMPUTE_H_
