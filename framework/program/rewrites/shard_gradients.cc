#include "framework/program/rewrites/shard_gradients.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/program/rewrites/insert_runs.h"
#include "framework/program/rewrites/shard.h"

namespace tessera {
namespace {

// The gradients of a section from one micro-batch.
struct SectionGradients {
  int section = 0, micro_batch = 0;
  int first_write = 0, last_write = 0;  // runs
  std::map<int64_t, int> values;        // by offset
};

class GradientSharder {
 public:
  explicit GradientSharder(Schedule* schedule)
      : schedule_(*schedule), sums_(schedule->shards.sections.size()) {}

  void Rewrite() && {
    schedule_.shards.sharding.zero =
        std::max(schedule_.shards.sharding.zero, 2);
    TakeSums();
    for (size_t run = 0; run < schedule_.runs.size(); ++run) {
      for (GradientWrite& write : schedule_.runs[run].d_operands) {
        if (write.parameter >= 0) WriteToValue(static_cast<int>(run), &write);
      }
    }
    for (const SectionGradients& gradients : gradients_) Join(gradients);
    PlaceSums();
  }

 private:
  void TakeSums() {
    for (const StepRun& run : schedule_.runs) {
      if (!schedule_.IsTask(run, Task::Kind::kReduce)) continue;
      Task& task = schedule_.tasks[run.task];
      ScatterSums(schedule_.shards.sharding.shards, &task);
      sums_[schedule_.shards.SectionOf(task.range)] = run.task;
    }
  }

  void WriteToValue(int run, GradientWrite* write) {
    const GradientRange& range = schedule_.gradients[write->parameter];
    const int section = schedule_.shards.SectionOf(range);
    const int micro_batch = schedule_.runs[run].micro_batch;
    auto gradients =
        absl::c_find_if(gradients_, [&](const SectionGradients& s) {
          return s.section == section && s.micro_batch == micro_batch;
        });
    if (gradients == gradients_.end()) {
      gradients = gradients_.insert(
          gradients_.end(), {section, micro_batch, /*first_write=*/run});
    }
    gradients->last_write = run;
    const auto [value, is_new] = gradients->values.emplace(
        range.begin - schedule_.shards.sections[section].begin, -1);
    if (is_new) {
      const ParameterBlockSpec& block =
          schedule_.program->parameters()[write->parameter];
      value->second = static_cast<int>(schedule_.values.size());
      schedule_.values.push_back(
          {.name = absl::StrCat(block.name, ".gradient"),
           .type = {BlockShape(block),
                    schedule_.tasks[sums_[section]].output.dtype},
           .role = Role::kGradient,
           .parameter = write->parameter});
    }
    write->value = value->second;
    write->accumulate = !is_new;
  }

  void Join(const SectionGradients& gradients) {
    const GradientRange& section = schedule_.shards.sections[gradients.section];
    JointBuffer joint = {.bytes = section.end - section.begin};
    for (const auto& [offset, value] : gradients.values) {
      joint.parts.push_back({value, offset});
    }
    schedule_.joint.push_back(std::move(joint));
  }

  // The sum of gradients_[index], whose task it adds.
  StepRun SumOf(const SectionGradients& gradients) {
    Task task = schedule_.tasks[sums_[gradients.section]];
    task.adds = gradients.micro_batch > 0;
    task.before_first = gradients.values.begin()->first;
    StepRun run = {.kind = StepRun::Kind::kTask,
                   .phase = schedule_.runs[gradients.last_write].phase,
                   .task = static_cast<int>(schedule_.tasks.size()),
                   .micro_batch = gradients.micro_batch,
                   .stream = StepStream::kCommunication};
    for (const auto& [offset, value] : gradients.values) {
      run.operands.push_back(value);
    }
    schedule_.tasks.push_back(std::move(task));
    return run;
  }

  void PlaceSums() {
    std::vector<bool> removed;
    for (const StepRun& run : schedule_.runs) {
      removed.push_back(schedule_.IsTask(run, Task::Kind::kReduce));
    }
    InsertedRuns sums;
    for (const SectionGradients& gradients : gradients_) {
      sums.emplace(gradients.last_write, SumOf(gradients));
    }
    const std::vector<int> renumbered =
        InsertRuns(/*before=*/{}, /*after=*/sums, removed, &schedule_);
    std::set<int> begins;
    for (const SectionGradients& gradients : gradients_) {
      begins.insert(renumbered[gradients.first_write]);
    }
    std::vector<int> placed;  // sums
    for (int run = 0; run < static_cast<int>(schedule_.runs.size()); ++run) {
      StepRun& r = schedule_.runs[run];
      if (begins.count(run) > 0 && placed.size() >= 2) {
        r.waits.push_back(placed[placed.size() - 2]);
      }
      if (schedule_.IsTask(r, Task::Kind::kReduce)) placed.push_back(run);
    }
  }

  Schedule& schedule_;
  std::vector<int> sums_;  // by section: index into Schedule::tasks
  std::vector<SectionGradients> gradients_;
};

}  // namespace

void ShardGradients(Schedule* schedule) {
  if (schedule->shards.sharding.shards == 1) return;
  GradientSharder(schedule).Rewrite();
}

}  // namespace tessera
