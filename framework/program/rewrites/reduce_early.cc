#include "framework/program/rewrites/reduce_early.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera {

void ReduceEarly(Schedule* schedule) {
  std::vector<int> last_write(schedule->gradients.size(), -1);
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    for (const GradientWrite& write : schedule->runs[run].d_operands) {
      if (write.parameter < 0) continue;
      last_write[write.parameter] = static_cast<int>(run);
    }
  }
  // The sums that follow each run.
  std::vector<std::vector<StepRun>> after(schedule->runs.size());
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
    after[ready].push_back(r);
    after[ready].back().stream = StepStream::kCommunication;
    after[ready].back().phase = schedule->runs[ready].phase;
    moved[run] = true;
  }
  std::vector<StepRun> runs;
  std::vector<int> renumbered(schedule->runs.size());
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    renumbered[run] = static_cast<int>(runs.size());
    if (!moved[run]) runs.push_back(std::move(schedule->runs[run]));
    for (StepRun& sum : after[run]) runs.push_back(std::move(sum));
  }
  for (StepRun& run : runs) {
    for (int& wait : run.waits) wait = renumbered[wait];
  }
  schedule->runs = std::move(runs);
}

}  // namespace tessera
