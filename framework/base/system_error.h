#ifndef FRAMEWORK_BASE_SYSTEM_ERROR_H_
#define FRAMEWORK_BASE_SYSTEM_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Whether `error` (an errno) says that a disk or quota is full.
bool IsFullDisk(int error);

// What a system call that failed with `error` (an errno) says: "cannot write
// runs/a/log: No space left on device". The code is Abseil's, except that a
// full disk or quota is FailedPrecondition: the user mends it, and
// ResourceExhausted is only for memory. A file above the limit on file sizes
// is FailedPrecondition too, and the message names the limit.
absl::Status SystemError(int error, absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_SYSTEM_ERROR_H_
