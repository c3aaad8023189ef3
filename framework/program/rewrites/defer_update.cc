#include "framework/program/rewrites/defer_update.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"
#include "framework/program/rewrites/insert_runs.h"
#include "framework/program/rewrites/shard.h"

namespace tessera {
namespace {

// Cuts `range` where gradients of parameters begin.
std::vector<GradientRange> Slices(const Schedule& schedule,
                                  const GradientRange& range,
                                  int64_t slice_bytes) {
  std::vector<int64_t> begins = {range.end};
  for (const GradientRange& gradient : schedule.gradients) {
    if (gradient.Overlaps(range)) begins.push_back(gradient.begin);
  }
  std::sort(begins.begin(), begins.end());
  std::vector<GradientRange> slices = {{range.begin, range.begin}};
  for (const int64_t begin : begins) {
    if (slices.back().end - slices.back().begin >= slice_bytes) {
      slices.push_back({slices.back().end, slices.back().end});
    }
    slices.back().end = std::max(begin, slices.back().end);
  }
  if (slices.back().empty()) slices.pop_back();
  return slices;
}

// The run of a task in slices, whose tasks it adds to `schedule`.
std::vector<StepRun> SlicesOf(const StepRun& run, int64_t slice_bytes,
                              Schedule* schedule) {
  std::vector<StepRun> runs;
  const Task whole = schedule->tasks[run.task];
  for (const GradientRange& slice :
       Slices(*schedule, whole.range, slice_bytes)) {
    runs.push_back(run);
    if (runs.size() > 1) {
      runs.back().task = static_cast<int>(schedule->tasks.size());
      schedule->tasks.emplace_back();
    }
    schedule->tasks[runs.back().task] = SliceOf(whole, slice);
  }
  return runs;
}

}  // namespace

void DeferUpdate(Schedule* schedule, int spared_multiprocessors,
                 int64_t slice_bytes) {
  const auto is_update = [schedule](const StepRun& run) {
    return schedule->IsTask(run, Task::Kind::kUpdate) ||
           schedule->IsTask(run, Task::Kind::kGather);
  };
  const auto first = absl::c_find_if(schedule->runs, is_update);
  if (first == schedule->runs.end()) return;
  TESSERA_CHECK(std::all_of(first, schedule->runs.end(), is_update),
                "the update is not the end of the list");
  InsertedRuns updates;
  std::vector<bool> removed;
  for (StepRun& run : schedule->runs) {
    removed.push_back(is_update(run));
    if (!removed.back()) {
      if (run.kind == StepRun::Kind::kForward && run.phase == Phase::kForward &&
          run.micro_batch == 0) {
        run.spared_multiprocessors = spared_multiprocessors;
      }
      continue;
    }
    const Task& task = schedule->tasks[run.task];
    const bool gathers = task.kind == Task::Kind::kGather;
    const bool whole = gathers || task.own_part || !task.divisible;
    run.phase = Phase::kForward;
    run.stream = gathers ? StepStream::kCommunication : StepStream::kUpdate;
    for (StepRun& part : whole ? std::vector<StepRun>{run}
                               : SlicesOf(run, slice_bytes, schedule)) {
      updates.emplace(0, std::move(part));
    }
  }
  InsertRuns(/*before=*/updates, /*after=*/{}, removed, schedule);
  schedule->starts_pending = true;
}

}  // namespace tessera
