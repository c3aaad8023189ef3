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
struct Summands {
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
    for (const Summands& summands : summands_) Join(summands);
    PlaceSums();
  }

 private:
  void TakeSums() {
    for (const StepRun& run : schedule_.runs) {
      if (!schedule_.IsTask(run, Task::Kind::kReduce)) continue;
      Task& task = schedule_.tasks[run.task];
      ScatterSums(schedule_.shards.sharding.shards, &task);
      sums_[SectionOf(task.range)] = run.task;
    }
  }

  int SectionOf(const GradientRange& range) const {
    const auto found = absl::c_find_if(
        schedule_.shards.sections,
        [&](const GradientRange& section) { return section.Overlaps(range); });
    return static_cast<int>(found - schedule_.shards.sections.begin());
  }

  void WriteToValue(int run, GradientWrite* write) {
    const GradientRange& range = schedule_.gradients[write->parameter];
    const int section = SectionOf(range);
    const int micro_batch = schedule_.runs[run].micro_batch;
    auto summands = absl::c_find_if(summands_, [&](const Summands& s) {
      return s.section == section && s.micro_batch == micro_batch;
    });
    if (summands == summands_.end()) {
      summands = summands_.insert(summands_.end(),
                                  {section, micro_batch, /*first_write=*/run});
    }
    summands->last_write = run;
    const auto [value, is_new] = summands->values.emplace(
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

  void Join(const Summands& summands) {
    const GradientRange& section = schedule_.shards.sections[summands.section];
    JointBuffer joint = {.bytes = section.end - section.begin};
    for (const auto& [offset, value] : summands.values) {
      joint.parts.push_back({value, offset});
    }
    schedule_.joint.push_back(std::move(joint));
  }

  // The sum of summands_[index], whose task it adds.
  StepRun SumOf(const Summands& summands) {
    Task task = schedule_.tasks[sums_[summands.section]];
    task.adds = summands.micro_batch > 0;
    task.before_first = summands.values.begin()->first;
    StepRun run = {.kind = StepRun::Kind::kTask,
                   .phase = schedule_.runs[summands.last_write].phase,
                   .task = static_cast<int>(schedule_.tasks.size()),
                   .micro_batch = summands.micro_batch,
                   .stream = StepStream::kCommunication};
    for (const auto& [offset, value] : summands.values) {
      run.operands.push_back(value);
    }
    schedule_.tasks.push_back(std::move(task));
    return run;
  }

  void PlaceSums() {
    std::multimap<int, const Summands*> begins, ends;  // by run
    for (const Summands& summands : summands_) {
      begins.emplace(summands.first_write, &summands);
      ends.emplace(summands.last_write, &summands);
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
  std::vector<Summands> summands_;
};

}  // namespace

void ShardGradients(Schedule* schedule) {
  if (schedule->shards.sharding.shards == 1) return;
  GradientSharder(schedule).Rewrite();
}

}  // namespace tessera
