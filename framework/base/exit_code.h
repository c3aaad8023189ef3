#ifndef FRAMEWORK_BASE_EXIT_CODE_H_
#define FRAMEWORK_BASE_EXIT_CODE_H_

#include "absl/status/status.h"

namespace tessera {

// Exit codes of the programs:
//   0          success
//   2          the user can fix it: a config, path, file or environment
//              (InvalidArgument, NotFound, AlreadyExists, PermissionDenied,
//              FailedPrecondition, OutOfRange, Unimplemented, DataLoss), or a
//              rank that was never started (DeadlineExceeded)
//   3          out of memory (ResourceExhausted); a full disk is 2
//   4          another process of the run is gone (Unavailable); its own exit
//              code says why
//   128 + n    stopped by signal n (SignalStatus): 129 SIGHUP, 130 SIGINT,
//              138 SIGUSR1, 143 SIGTERM
//   1          anything else
//
// `launch` exits with the code of the first rank that failed with a code other
// than 4, or with 4 if all failed ranks exited with 4. It adds two codes:
//   124        the run took longer than --timeout
//   127        a rank's program could not be executed
int ExitCode(const absl::Status& status);

inline constexpr int kPeerIsGoneExitCode = 4;
inline constexpr int kTimeoutExitCode = 124;    // as timeout(1)
inline constexpr int kCannotRunExitCode = 127;  // as the shell

// 128 + `signo`, the shell's code for a process that signal `signo` killed.
constexpr int SignalExitCode(int signo) { return 128 + signo; }

// The status of a program that signal `signo` stopped: Cancelled.
absl::Status SignalStatus(int signo);

// A copy of `status` that ReportAndExitCode() does not log, because another
// process of the run reports the same error.
absl::Status QuietStatus(absl::Status status);

// Logs an error as "error: " and its message, shortened by ShortenMessage(),
// without status code and stack trace. Returns ExitCode(status).
int ReportAndExitCode(const absl::Status& status);

}  // namespace tessera

#endif  // FRAMEWORK_BASE_EXIT_CODE_H_
