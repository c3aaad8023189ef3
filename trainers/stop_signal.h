#ifndef TRAINERS_STOP_SIGNAL_H_
#define TRAINERS_STOP_SIGNAL_H_

namespace tessera {

// Turns SIGINT and SIGTERM into a request to stop after the current step. A
// second one ends the process at once, as without this class. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  // puts the earlier handlers back
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that came, 0 so far.
  int received() const;
};

}  // namespace tessera

#endif  // TRAINERS_STOP_SIGNAL_H_
