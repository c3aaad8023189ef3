#include "framework/program/rewrites/recompute.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "framework/program/rewrites/insert_runs.h"

namespace tessera {
namespace {

// By op: its backward run of a micro-batch, an index into Schedule::runs; -1
// without one.
std::vector<int> BackwardRuns(const Schedule& schedule, int micro_batch) {
  std::vector<int> runs(schedule.program->ops().size(), -1);
  for (size_t run = 0; run < schedule.runs.size(); ++run) {
    const StepRun& r = schedule.runs[run];
    if (r.is_backward() && r.micro_batch == micro_batch) {
      runs[r.op] = static_cast<int>(run);
    }
  }
  return runs;
}

// The fields of a backward run that name values of the forward pass.
std::vector<int*> ForwardReads(StepRun* run) {
  std::vector<int*> reads;
  for (int& operand : run->operands) reads.push_back(&operand);
  if (run->kind == StepRun::Kind::kForwardBackward) return reads;
  for (int& result : run->results) reads.push_back(&result);
  return reads;
}

// The ops of a segment, in order, that compute the values in `read`, directly
// or through other ops.
std::vector<int> OpsThatLeadTo(absl::flat_hash_set<int> read,
                               const Schedule& schedule,
                               const RecomputedSegment& segment,
                               int micro_batch) {
  const auto is_read = [&](Value value) {
    return read.contains(schedule.ValueOf(value, micro_batch));
  };
  std::vector<int> ops;
  for (int op = segment.end_op - 1; op >= segment.first_op; --op) {
    const OpNode& node = schedule.program->ops()[op];
    if (!absl::c_any_of(node.results, is_read)) continue;
    ops.push_back(op);
    for (const Value operand : node.operands) {
      read.insert(schedule.ValueOf(operand, micro_batch));
    }
  }
  std::reverse(ops.begin(), ops.end());
  return ops;
}

// Lets the backward runs of a segment read copies of what they read, and adds
// the runs that make these to `copies`.
void RecomputeSegment(const RecomputedSegment& segment, int micro_batch,
                      const std::vector<int>& backward_runs, Schedule* schedule,
                      InsertedRuns* copies) {
  std::vector<int> backward;
  for (int op = segment.end_op - 1; op >= segment.first_op; --op) {
    if (backward_runs[op] >= 0) backward.push_back(backward_runs[op]);
  }
  absl::flat_hash_set<int> read;
  for (const int run : backward) {
    for (const int* value : ForwardReads(&schedule->runs[run])) {
      read.insert(*value);
    }
  }
  absl::flat_hash_map<int, int> copy_of;
  const auto current = [&copy_of](int value) {
    const auto copy = copy_of.find(value);
    return copy == copy_of.end() ? value : copy->second;
  };
  for (const int op : OpsThatLeadTo(read, *schedule, segment, micro_batch)) {
    const OpNode& node = schedule->program->ops()[op];
    StepRun run = {.kind = StepRun::Kind::kForward,
                   .phase = Phase::kRecompute,
                   .op = op,
                   .micro_batch = micro_batch};
    for (const Value operand : node.operands) {
      run.operands.push_back(current(schedule->ValueOf(operand, micro_batch)));
    }
    for (const Value result : node.results) {
      const int copy = static_cast<int>(schedule->values.size());
      schedule->values.push_back(schedule->program->info(result));
      copy_of[schedule->ValueOf(result, micro_batch)] = copy;
      run.results.push_back(copy);
    }
    copies->emplace(backward.front(), std::move(run));
  }
  for (const int run : backward) {
    for (int* value : ForwardReads(&schedule->runs[run])) {
      *value = current(*value);
    }
  }
}

}  // namespace

void Recompute(absl::Span<const RecomputedSegment> segments,
               Schedule* schedule) {
  if (segments.empty()) return;
  InsertedRuns copies;  // by the run that they come before
  for (int m = 0; m < schedule->listed_micro_batches(); ++m) {
    const std::vector<int> backward_runs = BackwardRuns(*schedule, m);
    for (const RecomputedSegment& segment : segments) {
      RecomputeSegment(segment, m, backward_runs, schedule, &copies);
    }
  }
  InsertRuns(/*before=*/copies, /*after=*/{},
             /*removed=*/std::vector<bool>(schedule->runs.size()), schedule);
}

}  // namespace tessera
