#ifndef FRAMEWORK_DIST_LAUNCHER_H_
#define FRAMEWORK_DIST_LAUNCHER_H_

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

// What `launch` runs: `nproc` copies of a program on this machine, as the ranks
// of one run, with a new secret of their own (TESSERA_SECRET).
struct LaunchOptions {
  int nproc = 1;
  // The program's path and its arguments.
  std::vector<std::string> command;
  // Set over the launcher's own environment and the variables that it gives
  // each rank (RANK, WORLD_SIZE, ...).
  std::vector<std::pair<std::string, std::string>> environment;
  // The run ends when it takes longer.
  absl::Duration timeout = absl::InfiniteDuration();
  // Between asking ranks to end (SIGTERM) and ending them (SIGKILL).
  absl::Duration grace = absl::Seconds(10);
  // Where the ranks' lines go, each behind its "[rank] ".
  std::FILE* out = stdout;
  std::FILE* err = stderr;
};

// Runs the ranks until all have ended. The first SIGINT, SIGTERM, SIGHUP (a
// lost terminal; stays ignored under nohup) or SIGUSR1 (Slurm's --signal) is
// passed on for the ranks to end in their own way. Signals that follow within a
// second are repeats of it; a later one kills the ranks. When a rank exits with
// another code than 0 or dies, the others are ended too: they would wait for
// it. Ranks do not survive this process.
//
// The exit code is 0, the exit code of the first rank that failed, or 128 + the
// signal that killed it; `err` names that rank. A rank that exits with
// kPeerIsGoneExitCode failed because of another rank, which gets two seconds to
// fail with a code of its own; otherwise the exit code is kPeerIsGoneExitCode.
// kTimeoutExitCode after `timeout`.
//
// Call it before the process has threads: it forks, and takes these signals for
// the time of the run. NotFound or PermissionDenied when the program cannot be
// run.
absl::StatusOr<int> Launch(const LaunchOptions& options);

}  // namespace tessera

#endif  // FRAMEWORK_DIST_LAUNCHER_H_
