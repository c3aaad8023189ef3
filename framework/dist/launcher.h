#ifndef FRAMEWORK_DIST_LAUNCHER_H_
#define FRAMEWORK_DIST_LAUNCHER_H_

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "framework/dist/line_pipe.h"

namespace tessera {

// The run that `launch` starts: `nproc` copies of a program on this machine as
// its ranks, with a new secret (TESSERA_SECRET).
struct LaunchOptions {
  int nproc = 1;
  // The program's path and its arguments.
  std::vector<std::string> command;
  // Overrides the launcher's own environment and the variables that it sets for
  // each rank (RANK, WORLD_SIZE, ...).
  std::vector<std::pair<std::string, std::string>> environment;
  // Limit on the duration of the run.
  absl::Duration timeout = absl::InfiniteDuration();
  // Time between SIGTERM and SIGKILL when the launcher ends the ranks.
  absl::Duration grace = absl::Seconds(10);
  // Receives the ranks' lines, each prefixed with "[rank] ".
  std::FILE* out = stdout;
  std::FILE* err = stderr;
  // Whether `out` is a console, which the run can do without, or a result.
  OutputKind out_kind = OutputKind::kConsole;
};

// Runs the ranks until all have ended. Ranks do not survive this process.
//
// The first SIGINT, SIGTERM, SIGHUP (a lost terminal; stays ignored under
// nohup) or SIGUSR1 (Slurm's --signal) is forwarded, so that the ranks can end
// in their own way. Signals within a second of it count as repeats; a later one
// kills the ranks. If a rank dies or exits with a nonzero code, the others are
// ended, too, because they would wait for it.
//
// Returns 0, the exit code of the first rank that failed, or 128 + the signal
// that killed it; `err` names that rank. A rank that exits with
// kPeerIsGoneExitCode failed because of another rank. That rank gets five
// seconds to fail with its own code; otherwise the result is
// kPeerIsGoneExitCode. Returns kTimeoutExitCode after `timeout`.
//
// Call this before the process has threads: it forks, and handles these signals
// during the run. NotFound or PermissionDenied if the program cannot be
// executed; FailedPrecondition if all ranks succeed but `out` receives their
// results and cannot be written.
absl::StatusOr<int> Launch(const LaunchOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_LAUNCHER_H_
