#ifndef TRAINERS_RUN_STOP_SIGNAL_H_
#define TRAINERS_RUN_STOP_SIGNAL_H_

#include <array>
#include <csignal>
#include <functional>

#include "absl/status/status.h"

namespace tessera {

// The signals that ask a run to stop: from a scheduler or supervisor, Ctrl-C, a
// lost terminal, and Slurm's --signal. If ranks received different ones, the
// first of these counts.
inline constexpr std::array<int, 4> kStopSignals = {SIGTERM, SIGINT, SIGHUP,
                                                    SIGUSR1};

// Turns kStopSignals into a request to stop after the current step. A second
// SIGINT or SIGTERM ends the process immediately, as it would without this
// class, unless it follows the first within a second, because supervisors
// repeat signals. An ignored SIGHUP (nohup) stays ignored. At most one object
// may exist at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // restores the earlier handlers
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal received; 0 if none.
  int received() const;

 private:
  std::array<struct sigaction, kStopSignals.size()> earlier_;
};

// A function for work in pieces that must clean up after a signal: Cancelled
// once one was received. Before its first call a signal ends the program
// immediately.
std::function<absl::Status()> StopCheck();

}  // namespace tessera

#endif  // TRAINERS_RUN_STOP_SIGNAL_H_
