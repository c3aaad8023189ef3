#ifndef FRAMEWORK_PROGRAM_STREAM_ORDER_H_
#define FRAMEWORK_PROGRAM_STREAM_ORDER_H_

#include <array>
#include <vector>

#include "framework/program/schedule.h"

namespace tessera {

// Which runs of a schedule have ended when another begins: those before it in
// its stream, those that it waits for, and those before these (Lamport's
// happens-before, with a vector clock for each run).
class StreamOrder {
 public:
  explicit StreamOrder(const Schedule& schedule);

  // True if run `a` has ended when the later run `b` begins.
  bool IsBefore(int a, int b) const {
    return clocks_[b][static_cast<int>(schedule_.runs[a].stream)] >= a;
  }
  // `run` itself if it is of the main stream. Else the first run of the main
  // stream beside which it may begin.
  int MayBeginAt(int run) const {
    return joined_at_[run] == run ? run : clocks_[run][0] + 1;
  }
  // `run` itself if it is of the main stream. Else the first run of the main
  // stream that begins after it has ended; the number of runs if there is none.
  int JoinedAt(int run) const { return joined_at_[run]; }

 private:
  const Schedule& schedule_;
  // By run and stream: the last run of the stream that has ended when the run
  // begins, or the run itself; -1 if there is none.
  std::vector<std::array<int, kStepStreams>> clocks_;
  std::vector<int> joined_at_;
};

// Adds the waits that the runs' accesses and their communicator ask for and
// that are not implied by others. Rewrites move runs to other streams and may
// add waits to limit how many are under way; this comes last.
void AddDataWaits(Schedule* schedule);

}  // namespace tessera

#endif  // FRAMEWORK_PROGRAM_STREAM_ORDER_H_
