#include "framework/program/rewrites/reduce_early.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/program/rewrites/insert_runs.h"

namespace tessera {

void ReduceEarly(Schedule* schedule) {
  std::vector<int> last_write(schedule->gradients.size(), -1);
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    for (const GradientWrite& write : schedule->runs[run].d_operands) {
      if (write.parameter < 0) continue;
      last_write[write.parameter] = static_cast<int>(run);
    }
  }
  InsertedRuns sums;  // by the run that they follow
  std::vector<bool> moved(schedule->runs.size(), false);
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    const StepRun& r = schedule->runs[run];
    if (!schedule->IsTask(r, Task::Kind::kReduce)) continue;
    int ready = -1;
    for (size_t p = 0; p < last_write.size(); ++p) {
      if (schedule->tasks[r.task].range.Overlaps(schedule->gradients[p])) {
        ready = std::max(ready, last_write[p]);
      }
    }
    if (ready < 0) continue;  // only gradients that no run writes
    StepRun sum = r;
    sum.stream = StepStream::kCommunication;
    sum.phase = schedule->runs[ready].phase;
    sums.emplace(ready, std::move(sum));
    moved[run] = true;
  }
  InsertRuns(/*before=*/{}, /*after=*/sums, moved, schedule);
}

}  // namespace tessera
