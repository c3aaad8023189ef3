#include "framework/program/rewrites/shard_weights.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Reads of a section of weights, between which it stays fetched.
struct Visit {
  GradientRange section;
  at::ScalarType dtype = at::kFloat;
  int first_read = 0;
  // The number of visits that had begun at the last read.
  size_t begun = 0;
  std::map<int64_t, int> values;  // what was fetched, by offset
  int64_t bytes = 0;              // of the whole section
};

class WeightSharder {
 public:
  WeightSharder(Schedule* schedule, const Task& fetch, int depth)
      : schedule_(*schedule), fetch_(fetch), depth_(depth) {}

  void Rewrite() && {
    schedule_.shards.sharding.zero = 3;
    for (int m = 0; m < schedule_.listed_micro_batches(); ++m) {
      visits_.clear();
      for (size_t run = 0; run < schedule_.runs.size(); ++run) {
        if (schedule_.runs[run].micro_batch != m ||
            schedule_.runs[run].op < 0) {
          continue;
        }
        for (int& operand : schedule_.runs[run].operands) {
          if (operand >= 0 && IsDivided(operand)) {
            operand = Fetched(operand, static_cast<int>(run));
          }
        }
      }
      for (size_t v = 0; v < visits_.size(); ++v) Fetch(v);
    }
    PlaceFetches();
  }

 private:
  bool IsDivided(int value) const {
    const ValueInfo& info = schedule_.values[value];
    return info.role == Role::kParameter &&
           !schedule_.gradients[info.parameter].empty() &&
           schedule_.shards.DividesWeights(schedule_.gradients[info.parameter]);
  }

  // The value in which `run` reads a parameter.
  int Fetched(int value, int run) {
    const ValueInfo info = schedule_.values[value];
    const GradientRange& gradient = schedule_.gradients[info.parameter];
    const GradientRange& section = *absl::c_find_if(
        schedule_.shards.sections,
        [&](const GradientRange& s) { return s.Overlaps(gradient); });
    // From bytes of gradients to bytes of weights.
    const int64_t from = (gradient.end - gradient.begin) / info.type.numel();
    const int64_t to = static_cast<int64_t>(c10::elementSize(info.type.dtype));
    const auto scaled = [&](int64_t bytes) { return bytes / from * to; };
    Visit& visit = VisitOf(section, info.type.dtype, run);
    visit.bytes = scaled(section.end - section.begin);
    const auto [found, is_new] =
        visit.values.emplace(scaled(gradient.begin - section.begin), -1);
    if (is_new) {
      found->second = static_cast<int>(schedule_.values.size());
      schedule_.values.push_back({.name = info.name,
                                  .type = info.type,
                                  .role = Role::kGathered,
                                  .parameter = info.parameter});
    }
    return found->second;
  }

  Visit& VisitOf(const GradientRange& section, at::ScalarType dtype, int run) {
    for (size_t v = visits_.size(); v-- > 0;) {
      Visit& visit = visits_[v];
      if (visit.section.begin != section.begin || visit.dtype != dtype) {
        continue;
      }
      if (visits_.size() > visit.begun + 1) break;
      visit.begun = visits_.size();
      return visit;
    }
    visits_.push_back({.section = section,
                       .dtype = dtype,
                       .first_read = run,
                       .begun = visits_.size() + 1});
    return visits_.back();
  }

  // Lists the fetch of a visit before the first read of the visit `depth_`
  // earlier.
  void Fetch(size_t index) {
    const Visit& visit = visits_[index];
    const size_t depth = static_cast<size_t>(depth_);
    const int before = visits_[index - std::min(index, depth)].first_read;
    Task task = fetch_;
    const int64_t size = static_cast<int64_t>(c10::elementSize(visit.dtype));
    const int shards = schedule_.shards.sharding.shards;
    task.output = {{visit.bytes / size}, visit.dtype};
    task.cost = {.bytes = 2 * visit.bytes * (shards - 1) / shards};
    task.range = visit.section;
    task.before_first = visit.values.begin()->first;
    StepRun run = {.kind = StepRun::Kind::kTask,
                   .phase = schedule_.runs[before].phase,
                   .task = static_cast<int>(schedule_.tasks.size()),
                   .micro_batch = schedule_.runs[before].micro_batch,
                   .stream = StepStream::kCommunication};
    schedule_.tasks.push_back(std::move(task));
    JointBuffer joint = {.bytes = visit.bytes};
    for (const auto& [offset, value] : visit.values) {
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
    fetches_.emplace(before, std::move(run));
  }

  void PlaceFetches() {
    std::vector<StepRun> runs;
    std::vector<int> renumbered;
    for (size_t r = 0; r < schedule_.runs.size(); ++r) {
      const auto renumber = [&](StepRun run) {
        for (int& wait : run.waits) wait = renumbered[wait];
        runs.push_back(std::move(run));
      };
      const auto [first, last] = fetches_.equal_range(static_cast<int>(r));
      for (auto fetch = first; fetch != last; ++fetch) renumber(fetch->second);
      renumbered.push_back(static_cast<int>(runs.size()));
      renumber(std::move(schedule_.runs[r]));
    }
    schedule_.runs = std::move(runs);
  }

  Schedule& schedule_;
  const Task& fetch_;
  const int depth_;
  std::vector<Visit> visits_;            // of one micro-batch, by first read
  std::multimap<int, StepRun> fetches_;  // by the run that they come before
};

}  // namespace

void ShardWeights(Schedule* schedule, const Task& fetch, int depth) {
  if (schedule->shards.sharding.shards == 1) return;
  WeightSharder(schedule, fetch, depth).Rewrite();
}

}  // namespace tessera
