#include "framework/program/rewrites/shard.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

// Restricts a task to this rank's parts. All ranks wait for the one with the
// most to do, so that is its cost.
void TakePart(int shards, Task* task) {
  const double share =
      task->largest_part > 0 ? task->largest_part : 1.0 / shards;
  task->own_part = true;
  task->cost.flops *= share;
  task->cost.product_flops *= share;
  task->cost.bytes =
      std::llround(static_cast<double>(task->cost.bytes) * share);
}

// The ranks' sums of squares of segments become those of all.
StepRun SumSquares(const StepRun& squares, const Task& reduce,
                   Schedule* schedule) {
  schedule->tasks.push_back({.kind = Task::Kind::kReduceSquares,
                             .name = "sums of squares",
                             .family = "all_reduce",
                             .kernel = reduce.kernel,
                             .output = {{}, at::kFloat}});
  return {.kind = StepRun::Kind::kTask,
          .phase = squares.phase,
          .task = static_cast<int>(schedule->tasks.size()) - 1,
          .operands = squares.results,
          .results = squares.results};
}

// The section's share of the update `whole`: of this rank's part, then of the
// others'.
std::vector<Task> UpdateSection(const Task& whole, const Task& reduce,
                                const GradientRange& section, int shards) {
  const int64_t bytes = section.end - section.begin;
  Task update = SliceOf(whole, section);
  Task gather = {.kind = Task::Kind::kGather,
                 .name = "weights",
                 .family = "all_gather",
                 .kernel = reduce.kernel,
                 .output = {update.output.shape, reduce.output.dtype},
                 .cost = {.bytes = 2 * bytes * (shards - 1) / shards},
                 .range = section};
  for (int64_t& size : update.output.shape) size /= shards;
  TakePart(shards, &update);
  return {std::move(update), std::move(gather)};
}

}  // namespace

Task SliceOf(const Task& task, const GradientRange& slice) {
  const double part = static_cast<double>(slice.end - slice.begin) /
                      static_cast<double>(task.range.end - task.range.begin);
  const auto share = [part](int64_t amount) {
    return std::llround(static_cast<double>(amount) * part);
  };
  Task sliced = task;
  sliced.range = slice;
  sliced.cost.flops *= part;
  sliced.cost.product_flops *= part;
  sliced.cost.bytes = share(task.cost.bytes);
  for (int64_t& size : sliced.output.shape) size = share(size);
  return sliced;
}

void ScatterSums(int shards, Task* reduce) {
  if (reduce->own_part || shards == 1) return;
  const int64_t bytes = reduce->range.end - reduce->range.begin;
  reduce->own_part = true;
  reduce->family = "reduce_scatter";
  reduce->cost.bytes -= 2 * bytes * (shards - 1) / shards;  // of the gather
}

void ShardUpdate(Schedule* schedule, int zero) {
  GradientShards& shards = schedule->shards;
  const int count = shards.sharding.shards;
  if (count == 1) return;
  shards.sharding.zero = zero;
  std::vector<StepRun> updates;
  while (schedule->IsTask(schedule->runs.back(), Task::Kind::kUpdate)) {
    updates.push_back(std::move(schedule->runs.back()));
    schedule->runs.pop_back();
  }

  std::vector<StepRun> runs;
  Task reduce;
  for (StepRun& run : schedule->runs) {
    runs.push_back(std::move(run));
    if (runs.back().kind != StepRun::Kind::kTask) continue;
    Task& task = schedule->tasks[runs.back().task];
    if (task.kind == Task::Kind::kReduce) {
      ScatterSums(count, &task);
      reduce = task;
    } else if (task.kind == Task::Kind::kSumOfSquares) {
      TakePart(count, &task);
      runs.push_back(SumSquares(runs.back(), reduce, schedule));
    }
  }

  for (const GradientRange& section : shards.sections) {
    const auto update = absl::c_find_if(updates, [&](const StepRun& run) {
      return schedule->tasks[run.task].range.Overlaps(section);
    });
    TESSERA_CHECK(update != updates.end(),
                  "the list does not end with updates");
    const Task whole = schedule->tasks[update->task];
    for (Task& task : UpdateSection(whole, reduce, section, count)) {
      if (task.kind == Task::Kind::kGather && shards.DividesWeights(section)) {
        continue;  // fetched when ops read them
      }
      StepRun run = *update;
      if (task.kind == Task::Kind::kGather) run.operands.clear();
      run.task = static_cast<int>(schedule->tasks.size());
      schedule->tasks.push_back(std::move(task));
      runs.push_back(std::move(run));
    }
  }
  schedule->runs = std::move(runs);
}

}  // namespace tessera
