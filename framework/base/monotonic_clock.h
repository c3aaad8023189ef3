#ifndef FRAMEWORK_BASE_MONOTONIC_CLOCK_H_
#define FRAMEWORK_BASE_MONOTONIC_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace tessera {

// The time by a clock that nobody can set, for intervals and deadlines.
// absl::Now() is for dates: it jumps when the system's clock is set. The two
// must not be compared, because this clock does not start at the epoch.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace tessera

#endif  // FRAMEWORK_BASE_MONOTONIC_CLOCK_H_
