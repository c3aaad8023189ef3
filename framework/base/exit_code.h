#ifndef FRAMEWORK_BASE_EXIT_CODE_H_
#define FRAMEWORK_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace tessera {

// How a program ends:
//   0          done
//   2          the user can mend it: a config, path, file or environment
//              (InvalidArgument, NotFound, AlreadyExists, PermissionDenied,
//              FailedPrecondition, OutOfRange, Unimplemented, DataLoss)
//   3          out of memory (ResourceExhausted); a full disk is 2
//   4          another process of the run is gone (Unavailable); its own exit
//              code says why
//   128 + n    stopped by signal n (SignalStatus): 129 SIGHUP, 130 SIGINT,
//              138 SIGUSR1, 143 SIGTERM
//   1          anything else
//
// `launch` ends with the code of the first rank that failed for a reason of its
// own; 4 if every rank that failed ended with 4. It adds two codes:
//   124        the run took longer than --timeout
//   127        a rank's program could not be executed
int ExitCode(const absl::Status& status);

inline constexpr int kPeerIsGoneExitCode = 4;
inline constexpr int kTimeoutExitCode = 124;    // timeout(1)'s
inline constexpr int kCannotRunExitCode = 127;  // the shell's

// 128 + `signo`, the shell's code for a process that signal `signo` ended.
constexpr int SignalExitCode(int signo) { return 128 + signo; }

// What a program returns that ended because of signal `signo`: Cancelled.
absl::Status SignalStatus(int signo);

// `status` as one that ReportAndExitCode() does not write: another process of
// the run has reported the same error.
absl::Status QuietStatus(absl::Status status);

// Writes an error to the log ("error: ..."), its message alone: no status code,
// no stack, and no more of a user's text than ShortenMessage() leaves. Returns
// ExitCode(status).
int ReportAndExitCode(const absl::Status& status);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_EXIT_CODE_H_
