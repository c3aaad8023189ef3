#include "framework/program/rewrites/defer_update.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"

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

// `task` restricted to `slice`.
Task SliceOf(const Task& task, const GradientRange& slice) {
  const double part = static_cast<double>(slice.end - slice.begin) /
                      static_cast<double>(task.range.end - task.range.begin);
  const auto share = [part](int64_t amount) {
    return std::llround(static_cast<double>(amount) * part);
  };
  Task sliced = task;
  sliced.range = slice;
  sliced.cost.flops *= part;
  sliced.cost.bytes = share(task.cost.bytes);
  for (int64_t& size : sliced.output.shape) size = share(size);
  return sliced;
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
  std::vector<StepRun> tail(std::make_move_iterator(first),
                            std::make_move_iterator(schedule->runs.end()));
  schedule->runs.erase(first, schedule->runs.end());
  std::vector<StepRun> runs;
  for (StepRun& run : tail) {
    const Task& task = schedule->tasks[run.task];
    const bool gathers = task.kind == Task::Kind::kGather;
    run.phase = Phase::kForward;
    run.stream = gathers ? StepStream::kCommunication : StepStream::kUpdate;
    if (gathers || task.own_part || !task.divisible) {
      runs.push_back(std::move(run));
      continue;
    }
    for (StepRun& slice : SlicesOf(run, slice_bytes, schedule)) {
      runs.push_back(std::move(slice));
    }
  }
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
