#ifndef FRAMEWORK_BASE_SYSTEM_ERROR_H_
#define FRAMEWORK_BASE_SYSTEM_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Whether `error` (an errno) says that a disk or quota is full.
bool IsFullDisk(int error);

// What a system call that failed with `error` (an errno) says: "cannot write
// runs/a/log: No space left on device". The code is Abseil's, except that these
// are FailedPrecondition, because the user can fix them: a full disk or quota
// and too many open files (ResourceExhausted is only for memory), a loop of
// symbolic links, and a file above the limit on file sizes, where the message
// names the limit.
absl::Status SystemError(int error, absl::string_view message);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_SYSTEM_ERROR_H_
