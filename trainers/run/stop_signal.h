#ifndef TRAINERS_RUN_STOP_SIGNAL_H_
#define TRAINERS_RUN_STOP_SIGNAL_H_

#include <array>
#include <csignal>

namespace tessera {

// The signals that ask a run to stop: of a scheduler or supervisor, Ctrl-C, a
// lost terminal, and Slurm's --signal. Where ranks received different ones, the
// first of these counts.
inline constexpr std::array<int, 4> kStopSignals = {SIGTERM, SIGINT, SIGHUP,
                                                    SIGUSR1};

// Turns kStopSignals into a request to stop after the current step. The second
// SIGINT or SIGTERM ends the process at once, as without this class, unless it
// follows the first within a second: supervisors repeat signals. A SIGHUP that
// is ignored, as under nohup, stays ignored. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // puts the earlier handlers back
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal received, 0 so far.
  int received() const;

 private:
  std::array<struct sigaction, kStopSignals.size()> earlier_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_STOP_SIGNAL_H_
