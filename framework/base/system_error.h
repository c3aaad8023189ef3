#ifndef FRAMEWORK_BASE_SYSTEM_ERROR_H_
#define FRAMEWORK_BASE_SYSTEM_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Whether `error` (an errno) means that a disk or quota is full.
bool IsFullDisk(int error);

// The status of a system call that failed with `error` (an errno): "cannot
// write runs/a/log: No space left on device". The code is Abseil's, except for
// errors that the user can fix, which are FailedPrecondition: a full disk or
// quota, too many open files (ResourceExhausted is only for memory), a loop of
// symbolic links, and a file above the limit on file sizes, for which the
// message names the limit.
absl::Status SystemError(int error, absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_SYSTEM_ERROR_H_
