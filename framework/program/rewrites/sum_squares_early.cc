#include "framework/program/rewrites/sum_squares_early.h"

#include <vector>

#include "absl/algorithm/container.h"

namespace tessera {

void SumSquaresEarly(Schedule* schedule, int64_t slice_bytes) {
  const auto sum = absl::c_find_if(schedule->runs, [&](const StepRun& run) {
    return schedule->IsTask(run, Task::Kind::kSumOfSquares);
  });
  if (sum == schedule->runs.end()) return;
  const int at = static_cast<int>(sum - schedule->runs.begin());
  const std::vector<StepRun> slices = SlicesOf(*sum, slice_bytes, schedule);
  const auto next = schedule->runs.erase(sum);
  schedule->runs.insert(next, slices.begin(), slices.end());
  for (StepRun& run : schedule->runs) {
    for (int& wait : run.waits) {
      if (wait > at) wait += static_cast<int>(slices.size()) - 1;
    }
  }
  MoveToLastWrite(Task::Kind::kSumOfSquares, StepStream::kOptimizer, schedule);
}

}  // namespace tessera
