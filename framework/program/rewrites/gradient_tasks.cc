#include "framework/program/rewrites/gradient_tasks.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {
namespace {

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

}  // namespace

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

void MoveToLastWrite(Task::Kind kind, StepStream stream, Schedule* schedule) {
  const size_t count = schedule->runs.size();
  std::vector<int> last_write(schedule->gradients.size(), -1);
  std::vector<std::vector<StepRun>> after(count);
  std::vector<bool> moved(count, false);
  for (size_t run = 0; run < count; ++run) {
    const StepRun& r = schedule->runs[run];
    if (!schedule->IsTask(r, kind)) {
      for (const Access& access : AccessesOf(*schedule, r)) {
        if (access.parameter < 0 || !access.writes) continue;
        last_write[access.parameter] = static_cast<int>(run);
      }
      continue;
    }
    int ready = -1;
    for (size_t p = 0; p < last_write.size(); ++p) {
      if (schedule->tasks[r.task].range.Overlaps(schedule->gradients[p])) {
        ready = std::max(ready, last_write[p]);
      }
    }
    if (ready < 0) continue;
    after[ready].push_back(r);
    after[ready].back().stream = stream;
    after[ready].back().phase = schedule->runs[ready].phase;
    moved[run] = true;
  }
  std::vector<StepRun> runs;
  std::vector<int> renumbered(count);
  for (size_t run = 0; run < count; ++run) {
    renumbered[run] = static_cast<int>(runs.size());
    if (!moved[run]) runs.push_back(std::move(schedule->runs[run]));
    for (StepRun& task : after[run]) runs.push_back(std::move(task));
  }
  for (StepRun& run : runs) {
    for (int& wait : run.waits) wait = renumbered[wait];
  }
  schedule->runs = std::move(runs);
}

}  // namespace tessera
