#include "trainers/rank_errors.h"

#include <csignal>
#include <ctime>
#include <utility>

#include "framework/base/exit_code.h"

namespace tessera {
namespace {

bool SameOnEveryRank(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsUnimplemented(status);
}

// Returns whether a SIGTERM arrives within `wait`. It does not end the process.
bool WaitForTermination(absl::Duration wait) {
  sigset_t termination, before;
  sigemptyset(&termination);
  sigaddset(&termination, SIGTERM);
  sigprocmask(SIG_BLOCK, &termination, &before);
  const timespec timeout = absl::ToTimespec(wait);
  const bool came = sigtimedwait(&termination, nullptr, &timeout) == SIGTERM;
  // Keep SIGTERM blocked after one has arrived: the program is about to end and
  // should keep its exit code.
  if (!came) sigprocmask(SIG_SETMASK, &before, nullptr);
  return came;
}

}  // namespace

absl::Status ReportOncePerMachine(absl::Status status, const WorldInfo& world,
                                  absl::Duration wait) {
  if (world.local_rank == 0 || !SameOnEveryRank(status)) return status;
  return WaitForTermination(wait) ? QuietStatus(std::move(status)) : status;
}

}  // namespace tessera
