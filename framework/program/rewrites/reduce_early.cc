#include "framework/program/rewrites/reduce_early.h"

#include "framework/program/rewrites/gradient_tasks.h"

namespace tessera {

void ReduceEarly(Schedule* schedule) {
  MoveToLastWrite(Task::Kind::kReduce, StepStream::kCommunication, schedule);
  int last_sum = -1;
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    StepRun& r = schedule->runs[run];
    if (r.stream == StepStream::kCommunication)
      last_sum = static_cast<int>(run);
    // A communicator serves one stream at a time.
    if (last_sum >= 0 && schedule->IsTask(r, Task::Kind::kReduceLoss)) {
      r.waits.push_back(last_sum);
    }
  }
}

}  // namespace tessera
