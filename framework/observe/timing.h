#ifndef FRAMEWORK_OBSERVE_TIMING_H_
#define FRAMEWORK_OBSERVE_TIMING_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"

namespace tessera {

// Milliseconds of one call of `fn`, timed as in Measure().
absl::StatusOr<double> TimeOnceMs(absl::FunctionRef<absl::Status()> fn,
                                  c10::Device device);

struct Timing {
  double median_ms = 0, min_ms = 0, max_ms = 0;
};

// Times `iterations` calls of `fn` after `warmup` untimed ones: on a GPU by
// events around each call, with the host waiting for the second event, and on a
// CPU by a monotonic clock. Stops at the first error.
absl::StatusOr<Timing> Measure(absl::FunctionRef<absl::Status()> fn,
                               c10::Device device, int warmup, int iterations);

}  // namespace tessera

#endif  // FRAMEWORK_OBSERVE_TIMING_H_
