#ifndef FRAMEWORK_PROGRAM_VERIFY_H_
#define FRAMEWORK_PROGRAM_VERIFY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "framework/program/lifetime.h"
#include "framework/program/schedule.h"

namespace tessera {

// What a step leaves behind, as hashes of what computed it: two schedules with
// equal hashes compute the same from the same inputs, bit for bit.
struct StepContents {
  std::vector<uint64_t> gradients;  // by parameter; 0: not written
  std::vector<uint64_t> outputs;    // in the order of Schedule::outputs
  // What tasks read of gradients and losses, in the order in which they do.
  uint64_t tasks = 0;

  bool operator==(const StepContents&) const = default;
};

// Checks a plan of a schedule's memory without knowing how it was made. It
// replays the runs over the bytes of all buffers and of the parameters'
// gradients. For each byte it knows which run wrote it last, which runs of each
// stream have read it since, and what lies there: a hash of the run that wrote
// it and of all that this run had read.
//
// - What a run reads was written by a run that has ended, by the order of the
//   streams (StreamOrder), not only by that of the list. It still lies there:
//   nothing was written over it, and it was not freed.
// - What a run writes over was read and written by runs that have ended. It
//   writes over what it reads itself only if its op allows it, and its results
//   do not overlap.
// - The gradient of a parameter is written once, then added to, then summed
//   over the ranks at most once. Tasks other than sums read it only after
//   that. At the end it lies in its range, and the outputs are intact.
// - Ops read weights before their update; if the list begins with the update of
//   the step before (Schedule::starts_pending), after it. All are updated once.
// - One run communicates at a time.
// - Every value is freed unless it is an output, and written on the main stream
//   unless it lies in a joint buffer.
// - If ranks divide gradients, each micro-batch's are written to values once,
//   then added to, and summed over the ranks. If they divide weights, ops read
//   those only in values that were fetched at the version they must read.
//
// The error is Internal and names the run, the value and what took its place.
// Takes time proportional to the number of pieces of memory that runs touch.
absl::StatusOr<StepContents> VerifyLifetimes(const Schedule& schedule,
                                             const Lifetimes& lifetimes);

// A hash of the collectives of a step: their order, sizes and dtypes. Ranks
// with different hashes would wait for each other forever.
uint64_t CollectiveOrder(const Schedule& schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_VERIFY_H_
