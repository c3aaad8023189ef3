#include "framework/program/rewrites/shard_weights.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "framework/program/rewrites/insert_runs.h"

namespace tessera {
namespace {

// Reads of a section of weights, between which it stays gathered.
struct GatheredSection {
  GradientRange section;
  at::ScalarType dtype = at::kFloat;
  int first_read = 0;
  // How many sections had been gathered at the last read, this one included.
  size_t begun = 0;
  std::map<int64_t, int> values;  // the gathered weights, by offset
  int64_t bytes = 0;              // of the whole section
};

class WeightSharder {
 public:
  WeightSharder(Schedule* schedule, const Task& unshard, int depth)
      : schedule_(*schedule), unshard_(unshard), depth_(depth) {}

  void Rewrite() && {
    schedule_.shards.sharding.zero = 3;
    for (int m = 0; m < schedule_.listed_micro_batches(); ++m) {
      gathered_.clear();
      for (size_t run = 0; run < schedule_.runs.size(); ++run) {
        if (schedule_.runs[run].micro_batch != m ||
            schedule_.runs[run].op < 0) {
          continue;
        }
        for (int& operand : schedule_.runs[run].operands) {
          if (operand >= 0 && IsDivided(operand)) {
            operand = Gathered(operand, static_cast<int>(run));
          }
        }
      }
      for (size_t v = 0; v < gathered_.size(); ++v) Unshard(v);
    }
    const std::vector<bool> removed(schedule_.runs.size(), false);
    InsertRuns(/*before=*/unshards_, /*after=*/{}, removed, &schedule_);
  }

 private:
  bool IsDivided(int value) const {
    const ValueInfo& info = schedule_.values[value];
    return info.role == Role::kParameter &&
           !schedule_.gradients[info.parameter].empty() &&
           schedule_.shards.DividesWeights(schedule_.gradients[info.parameter]);
  }

  // The value in which `run` reads a parameter.
  int Gathered(int value, int run) {
    const ValueInfo info = schedule_.values[value];
    const GradientRange& gradient = schedule_.gradients[info.parameter];
    const GradientRange& section =
        schedule_.shards.sections[schedule_.shards.SectionOf(gradient)];
    // From bytes of gradients to bytes of weights.
    const int64_t from = (gradient.end - gradient.begin) / info.type.numel();
    const int64_t to = static_cast<int64_t>(c10::elementSize(info.type.dtype));
    const auto scaled = [&](int64_t bytes) { return bytes / from * to; };
    GatheredSection& gathered = GatheredFor(section, info.type.dtype, run);
    gathered.bytes = scaled(section.end - section.begin);
    const auto [found, is_new] =
        gathered.values.emplace(scaled(gradient.begin - section.begin), -1);
    if (is_new) {
      found->second = static_cast<int>(schedule_.values.size());
      schedule_.values.push_back({.name = info.name,
                                  .type = info.type,
                                  .role = Role::kGathered,
                                  .parameter = info.parameter});
    }
    return found->second;
  }

  GatheredSection& GatheredFor(const GradientRange& section,
                               at::ScalarType dtype, int run) {
    for (size_t v = gathered_.size(); v-- > 0;) {
      GatheredSection& gathered = gathered_[v];
      if (gathered.section.begin != section.begin || gathered.dtype != dtype) {
        continue;
      }
      if (gathered_.size() > gathered.begun + 1) break;
      gathered.begun = gathered_.size();
      return gathered;
    }
    gathered_.push_back({.section = section,
                         .dtype = dtype,
                         .first_read = run,
                         .begun = gathered_.size() + 1});
    return gathered_.back();
  }

  // Gathers a section before the first read of the one `depth_` earlier.
  void Unshard(size_t index) {
    const GatheredSection& gathered = gathered_[index];
    const size_t depth = static_cast<size_t>(depth_);
    const int before = gathered_[index - std::min(index, depth)].first_read;
    Task task = unshard_;
    const int64_t size = static_cast<int64_t>(c10::elementSize(gathered.dtype));
    const int shards = schedule_.shards.sharding.shards;
    task.output = {{gathered.bytes / size}, gathered.dtype};
    task.cost = {.bytes = 2 * gathered.bytes * (shards - 1) / shards};
    task.range = gathered.section;
    task.before_first = gathered.values.begin()->first;
    StepRun run = {.kind = StepRun::Kind::kTask,
                   .phase = schedule_.runs[before].phase,
                   .task = static_cast<int>(schedule_.tasks.size()),
                   .micro_batch = schedule_.runs[before].micro_batch,
                   .stream = StepStream::kCommunication};
    schedule_.tasks.push_back(std::move(task));
    JointBuffer joint = {.bytes = gathered.bytes};
    for (const auto& [offset, value] : gathered.values) {
      run.results.push_back(value);
      joint.parts.push_back({value, offset});
    }
    schedule_.joint.push_back(std::move(joint));
    // Not before the main stream is there.
    for (int earlier = before; earlier-- > 0;) {
      if (schedule_.runs[earlier].stream != StepStream::kMain) continue;
      run.waits = {earlier};
      break;
    }
    unshards_.emplace(before, std::move(run));
  }

  Schedule& schedule_;
  const Task& unshard_;
  const int depth_;
  std::vector<GatheredSection> gathered_;  // of one micro-batch, by first read
  InsertedRuns unshards_;                  // by the run that they come before
};

}  // namespace

void ShardWeights(Schedule* schedule, const Task& unshard, int depth) {
  if (schedule->shards.sharding.shards == 1) return;
  WeightSharder(schedule, unshard, depth).Rewrite();
}

}  // namespace tessera
