#include "framework/program/rewrites/insert_runs.h"

#include <utility>

namespace tessera {

std::vector<int> InsertRuns(const InsertedRuns& before,
                            const InsertedRuns& after,
                            const std::vector<bool>& removed,
                            Schedule* schedule) {
  std::vector<StepRun> runs;
  std::vector<int> renumbered;
  const auto insert = [&runs](const InsertedRuns& inserted, size_t place) {
    const auto [first, last] = inserted.equal_range(static_cast<int>(place));
    for (auto run = first; run != last; ++run) runs.push_back(run->second);
  };
  for (size_t run = 0; run < schedule->runs.size(); ++run) {
    insert(before, run);
    renumbered.push_back(static_cast<int>(runs.size()));
    if (!removed[run]) runs.push_back(std::move(schedule->runs[run]));
    insert(after, run);
  }
  for (StepRun& run : runs) {
    for (int& wait : run.waits) wait = renumbered[wait];
  }
  schedule->runs = std::move(runs);
  return renumbered;
}

}  // namespace tessera
