#ifndef FRAMEWORK_PROGRAM_VERIFY_H_
#define FRAMEWORK_PROGRAM_VERIFY_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {

// Checks a plan of a schedule's memory without knowing how it was made. It
// replays the runs over the bytes of all buffers and of the parameters'
// gradients, and remembers which value or gradient was written where last:
//
// - What a run reads was written before and still lies there: nothing was
//   written over it, and it was not freed. A run beside others
//   (OpRun::beside_until) reads from its beginning until it must have ended.
// - A run writes over what it reads itself only if its op allows it, and its
//   results do not overlap.
// - The gradient of a parameter is written once and then added to. At the end
//   it lies in its range, and the outputs are intact.
// - Every other value is freed.
//
// `gradients` are the ranges that PlanLifetimes() was given, or empty: then no
// buffer lies in the gradient buffer. The error is Internal and names the run,
// the value and what took its place.
absl::Status VerifyLifetimes(const Schedule& schedule,
                             const Lifetimes& lifetimes,
                             absl::Span<const GradientRange> gradients = {});

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_VERIFY_H_
