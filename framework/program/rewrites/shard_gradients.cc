#include "framework/program/rewrites/shard_gradients.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"
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
    std::multimap<int, const SectionGradients*> begins, ends;  // by run
    for (const SectionGradients& gradients : gradients_) {
      begins.emplace(gradients.first_write, &gradients);
      ends.emplace(gradients.last_write, &gradients);
    }
    std::vector<StepRun> runs;
    std::vector<int> renumbered, placed;  // placed: the sums in runs
    for (size_t r = 0; r < schedule_.runs.size(); ++r) {
      const int run = static_cast<int>(r);
      renumbered.push_back(static_cast<int>(runs.size()));
      if (schedule_.IsTask(schedule_.runs[r], Task::Kind::kReduce)) continue;
      runs.push_back(schedule_.runs[r]);
      for (int& wait : runs.back().waits) wait = renumbered[wait];
      if (begins.count(run) > 0 && placed.size() >= 2) {
        runs.back().waits.push_back(placed[placed.size() - 2]);
      }
      const auto [first, last] = ends.equal_range(run);
      for (auto end = first; end != last; ++end) {
        placed.push_back(static_cast<int>(runs.size()));
        runs.push_back(SumOf(*end->second));
      }
    }
    schedule_.runs = std::move(runs);
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
