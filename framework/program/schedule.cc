#include "framework/program/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

std::vector<int> Indices(absl::Span<const Value> values) {
  std::vector<int> indices;
  for (const Value value : values) indices.push_back(value.index);
  return indices;
}

Positions Wanted(const Program& program, const OpNode& node) {
  Positions wanted;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (program.info(node.operands[i]).needs_grad) {
      wanted.Add(static_cast<int>(i));
    }
  }
  return wanted;
}

// Leaves of a backward run's operands and results those that it reads.
void KeepReads(const Program& program, OpRun* run) {
  const BackwardReads reads =
      program.ops()[run->op].op->ReadsInBackward(run->wanted());
  const auto keep = [](std::vector<int>& values, Positions read) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!read.Has(static_cast<int>(i))) values[i] = -1;
    }
  };
  keep(run->operands, reads.operands);
  keep(run->results, reads.results);
}

// True if the op that computes `loss` leaves its forward to the backward pass.
bool JoinsBackward(const Program& program, const OpNode& node, Value loss) {
  return node.op->joins_backward() &&
         absl::c_linear_search(node.results, loss) &&
         !Wanted(program, node).empty();
}

// `loss` is undefined without a backward pass.
Schedule Forward(const Program& program, Value loss = {}) {
  Schedule schedule;
  schedule.program = &program;
  schedule.values.assign(program.values().begin(), program.values().end());
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const OpNode& node = program.ops()[i];
    if (JoinsBackward(program, node, loss)) continue;
    schedule.runs.push_back({.kind = OpRun::Kind::kForward,
                             .phase = Phase::kForward,
                             .op = static_cast<int>(i),
                             .operands = Indices(node.operands),
                             .results = Indices(node.results)});
  }
  schedule.first_backward = static_cast<int>(schedule.runs.size());
  schedule.outputs = Indices(program.outputs());
  return schedule;
}

// Appends the backward pass: the ops in reverse order.
class BackwardPass {
 public:
  BackwardPass(Schedule* schedule, absl::Span<const RecomputedSegment> segments)
      : schedule_(*schedule),
        program_(*schedule->program),
        gradient_(schedule->values.size(), -1),
        current_(schedule->values.size()),
        segment_of_(program_.ops().size(), -1),
        segments_(segments.begin(), segments.end()),
        written_(program_.parameters().size(), false) {
    for (size_t v = 0; v < current_.size(); ++v) {
      current_[v] = static_cast<int>(v);
    }
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (int op = segments_[s].first_op; op < segments_[s].end_op; ++op) {
        segment_of_[op] = static_cast<int>(s);
      }
    }
    recomputed_.resize(segments_.size(), false);
  }

  void Append(Value loss) {
    loss_ = loss;
    schedule_.loss_gradient =
        NewValue({.name = "loss.gradient",
                  .type = schedule_.values[loss.index].type,
                  .role = Role::kInput});
    gradient_[loss.index] = schedule_.loss_gradient;
    for (int op = static_cast<int>(program_.ops().size()) - 1; op >= 0; --op) {
      Differentiate(op);
    }
    for (size_t v = 0; v < program_.values().size(); ++v) {
      const bool is_input = program_.values()[v].role == Role::kInput;
      if (!is_input || gradient_[v] < 0) continue;
      schedule_.input_gradients.push_back({static_cast<int>(v), gradient_[v]});
      schedule_.outputs.push_back(gradient_[v]);
    }
    for (size_t p = 0; p < written_.size(); ++p) {
      if (program_.parameters()[p].trainable && !written_[p]) {
        schedule_.without_gradient.push_back(static_cast<int>(p));
      }
    }
  }

 private:
  int NewValue(ValueInfo info) {
    schedule_.values.push_back(std::move(info));
    return static_cast<int>(schedule_.values.size()) - 1;
  }

  bool HasGradient(const OpNode& node) const {
    return std::any_of(
        node.results.begin(), node.results.end(),
        [this](Value result) { return gradient_[result.index] >= 0; });
  }

  void Differentiate(int op) {
    const OpNode& node = program_.ops()[op];
    const Positions wanted = Wanted(program_, node);
    if (wanted.empty() || !HasGradient(node)) return;
    if (segment_of_[op] >= 0) Recompute(segment_of_[op]);

    OpRun run = {
        .kind = OpRun::Kind::kBackward,
        .phase = Phase::kBackward,
        .op = op,
        .d_operands = std::vector<GradientWrite>(node.operands.size())};
    for (const Value result : node.results) {
      run.d_results.push_back(gradient_[result.index]);
    }
    // The gradient of each operand, passed through or written by this run.
    std::vector<int> contributions(node.operands.size(), -1);
    bool computes = false;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const int position = static_cast<int>(i);
      if (!wanted.Has(position)) continue;
      const ValueInfo& info = program_.info(node.operands[i]);
      if (const auto passed = node.op->PassesGradient(position);
          passed.has_value() && info.role != Role::kParameter) {
        contributions[i] = run.d_results[*passed];
        continue;
      }
      computes = true;
      if (info.role == Role::kParameter) {
        run.d_operands[i].parameter = info.parameter;
        run.d_operands[i].accumulate = written_[info.parameter];
        written_[info.parameter] = true;
      } else {
        contributions[i] =
            NewValue({.name = absl::StrCat(info.name, ".gradient"),
                      .type = info.type,
                      .role = Role::kGradient});
        run.d_operands[i].value = contributions[i];
      }
    }
    if (JoinsBackward(program_, node, loss_)) {
      run.kind = OpRun::Kind::kForwardBackward;
      for (const Value operand : node.operands) {
        run.operands.push_back(current_[operand.index]);
      }
      run.results = Indices(node.results);
      schedule_.runs.push_back(std::move(run));
    } else if (computes) {
      for (const Value operand : node.operands) {
        run.operands.push_back(current_[operand.index]);
      }
      for (const Value result : node.results) {
        run.results.push_back(current_[result.index]);
      }
      KeepReads(program_, &run);
      schedule_.runs.push_back(std::move(run));
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (contributions[i] >= 0) {
        Accumulate(op, node.operands[i].index, contributions[i]);
      }
    }
  }

  // Adds `contribution` to the gradient of `value`.
  void Accumulate(int op, int value, int contribution) {
    int& gradient = gradient_[value];
    if (gradient < 0) {
      gradient = contribution;
      return;
    }
    const int sum = NewValue(
        {.name = absl::StrCat(schedule_.values[value].name, ".gradient"),
         .type = schedule_.values[value].type,
         .role = Role::kGradient});
    schedule_.runs.push_back({.kind = OpRun::Kind::kAdd,
                              .phase = Phase::kBackward,
                              .op = op,
                              .operands = {gradient, contribution},
                              .results = {sum}});
    gradient = sum;
  }

  // Repeats the forward ops whose results the segment's backward reads.
  void Recompute(int segment) {
    if (recomputed_[segment]) return;
    recomputed_[segment] = true;
    const RecomputedSegment& range = segments_[segment];
    std::vector<bool> needed(range.end_op - range.first_op, false);
    std::vector<bool> is_read(program_.values().size(), false);
    for (int op = range.end_op - 1; op >= range.first_op; --op) {
      const OpNode& node = program_.ops()[op];
      const bool again =
          std::any_of(node.results.begin(), node.results.end(),
                      [&](Value result) { return is_read[result.index]; });
      needed[op - range.first_op] = again || BackwardReadsResult(node);
      if (needed[op - range.first_op]) {
        for (const Value operand : node.operands) {
          is_read[operand.index] = true;
        }
      }
      MarkBackwardOperands(node, &is_read);
    }
    for (int op = range.first_op; op < range.end_op; ++op) {
      if (needed[op - range.first_op]) RunAgain(op);
    }
  }

  // What the op's backward reads for the gradients that are wanted.
  BackwardReads Reads(const OpNode& node) const {
    Positions wanted;
    const Positions all = Wanted(program_, node);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const int position = static_cast<int>(i);
      const bool passed =
          node.op->PassesGradient(position).has_value() &&
          program_.info(node.operands[i]).role != Role::kParameter;
      if (all.Has(position) && !passed) wanted.Add(position);
    }
    return wanted.empty() ? BackwardReads() : node.op->ReadsInBackward(wanted);
  }
  bool BackwardReadsResult(const OpNode& node) const {
    return !Reads(node).results.empty();
  }
  void MarkBackwardOperands(const OpNode& node,
                            std::vector<bool>* is_read) const {
    const BackwardReads reads = Reads(node);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (reads.operands.Has(static_cast<int>(i))) {
        (*is_read)[node.operands[i].index] = true;
      }
    }
  }

  void RunAgain(int op) {
    const OpNode& node = program_.ops()[op];
    OpRun run = {
        .kind = OpRun::Kind::kForward, .phase = Phase::kRecompute, .op = op};
    for (const Value operand : node.operands) {
      run.operands.push_back(current_[operand.index]);
    }
    for (const Value result : node.results) {
      current_[result.index] = NewValue(program_.info(result));
      run.results.push_back(current_[result.index]);
    }
    schedule_.runs.push_back(std::move(run));
  }

  Schedule& schedule_;
  const Program& program_;
  Value loss_;
  std::vector<int> gradient_;  // by value of the program; -1: none yet
  // By value of the program: where backward reads it, which is its recomputed
  // copy if there is one.
  std::vector<int> current_;
  std::vector<int> segment_of_;  // by op; -1: none
  const std::vector<RecomputedSegment> segments_;
  std::vector<bool> recomputed_;  // by segment
  std::vector<bool> written_;     // by parameter: its gradient
};

}  // namespace

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
  }
  return "unknown";
}

Positions OpRun::wanted() const {
  Positions wanted;
  for (size_t i = 0; i < d_operands.size(); ++i) {
    if (d_operands[i].wanted()) wanted.Add(static_cast<int>(i));
  }
  return wanted;
}

std::string Schedule::NameOf(const OpRun& run) const {
  const std::string& path = program->ops()[run.op].name;
  const std::string name = path.substr(path.rfind('/') + 1);
  return run.kind == OpRun::Kind::kAdd ? absl::StrCat("+ ", name) : name;
}

Cost Schedule::CostOf(const OpRun& run) const {
  const Op& op = *program->ops()[run.op].op;
  switch (run.kind) {
    case OpRun::Kind::kForward:
      return op.ForwardCost();
    case OpRun::Kind::kBackward:
    case OpRun::Kind::kForwardBackward:
      return op.BackwardCost(run.wanted());
    case OpRun::Kind::kAdd:
      break;
  }
  const TensorType& sum = values[run.results[0]].type;
  return {.flops = static_cast<double>(sum.numel()), .bytes = 3 * sum.bytes()};
}

Schedule TrainingSchedule(const Program& program, Value loss,
                          absl::Span<const RecomputedSegment> segments) {
  Schedule schedule = Forward(program, loss);
  BackwardPass(&schedule, segments).Append(loss);
  return schedule;
}

void OverlapWeightGradients(Schedule* schedule) {
  std::vector<int> writers(schedule->program->parameters().size(), 0);
  for (const OpRun& run : schedule->runs) {
    for (const GradientWrite& write : run.d_operands) {
      if (write.parameter >= 0) ++writers[write.parameter];
    }
  }
  std::vector<OpRun> runs;
  std::vector<size_t> beside;  // indices into runs
  for (OpRun& run : schedule->runs) {
    // A weight with two readers gets the sum of two runs, in their order.
    const bool alone =
        absl::c_all_of(run.d_operands, [&](const GradientWrite& write) {
          return write.parameter < 0 || writers[write.parameter] == 1;
        });
    OpRun of_weights = run, of_values = run;
    for (size_t i = 0; i < run.d_operands.size(); ++i) {
      (run.d_operands[i].parameter >= 0 ? of_values : of_weights)
          .d_operands[i] = {};
    }
    if (run.kind != OpRun::Kind::kBackward || !alone ||
        !schedule->program->ops()[run.op].op->separable() ||
        of_weights.wanted().empty() || of_values.wanted().empty()) {
      runs.push_back(std::move(run));
      continue;
    }
    beside.push_back(runs.size());
    for (OpRun* const part : {&of_weights, &of_values}) {
      KeepReads(*schedule->program, part);
      runs.push_back(std::move(*part));
    }
  }
  for (size_t i = 0; i < beside.size(); ++i) {
    const size_t until = i + 2 < beside.size() ? beside[i + 2] : runs.size();
    runs[beside[i]].beside_until = static_cast<int>(until);
  }
  schedule->runs = std::move(runs);
}

Schedule ForwardSchedule(const Program& program) { return Forward(program); }

}  // namespace tessera
