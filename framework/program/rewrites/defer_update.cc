#include "framework/program/rewrites/defer_update.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"

namespace tessera {

void DeferUpdate(Schedule* schedule, int spared_multiprocessors,
                 int64_t slice_bytes) {
  const auto update = absl::c_find_if(schedule->runs, [&](const StepRun& run) {
    return schedule->IsTask(run, Task::Kind::kUpdate);
  });
  if (update == schedule->runs.end()) return;
  TESSERA_CHECK(std::next(update) == schedule->runs.end(),
                "the update is not the last run");
  StepRun run = std::move(schedule->runs.back());
  schedule->runs.pop_back();
  run.phase = Phase::kForward;
  run.stream = StepStream::kOptimizer;
  std::vector<StepRun> runs = SlicesOf(run, slice_bytes, schedule);
  const int moved = static_cast<int>(runs.size());
  for (StepRun& later : schedule->runs) {
    for (int& wait : later.waits) wait += moved;
    if (later.kind == StepRun::Kind::kForward &&
        later.phase == Phase::kForward && later.micro_batch == 0) {
      later.spared_multiprocessors = spared_multiprocessors;
    }
    runs.push_back(std::move(later));
  }
  schedule->runs = std::move(runs);
  schedule->starts_pending = true;
}

}  // namespace tessera
