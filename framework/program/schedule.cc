#include "framework/program/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "framework/base/check.h"

namespace tessera {
namespace {

std::vector<int> NumbersOf(absl::Span<const Value> values,
                           const std::vector<int>& numbers) {
  std::vector<int> found;
  for (const Value value : values) found.push_back(numbers[value.index]);
  return found;
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

// True if the op that computes `loss` leaves its forward to the backward pass.
bool JoinsBackward(const Program& program, const OpNode& node, Value loss) {
  return node.op->joins_backward() &&
         absl::c_linear_search(node.results, loss) &&
         !Wanted(program, node).empty();
}

}  // namespace

void KeepReads(const Program& program, StepRun* run) {
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

GradientRange GradientShards::PartOf(const GradientRange& section,
                                     int shard) const {
  const int64_t begin = sharding.PartBegin(section.begin, section.end, shard);
  return {begin, begin + (section.end - section.begin) / sharding.shards};
}

bool GradientShards::DividesWeights(const GradientRange& range) const {
  return sharding.divides_weights() && divisible[SectionOf(range)];
}

int GradientShards::SectionOf(const GradientRange& range) const {
  const auto found = absl::c_find_if(
      sections, [&](const GradientRange& s) { return s.Overlaps(range); });
  TESSERA_CHECK(found != sections.end(), "no section has byte ", range.begin);
  return static_cast<int>(found - sections.begin());
}

std::vector<GradientRange> GradientShards::HeldOf(
    const GradientRange& range) const {
  std::vector<GradientRange> held;
  for (const GradientRange& section : sections) {
    if (range.Overlaps(section)) held.push_back(HeldPart(section));
  }
  return held;
}

bool IsCollective(const Schedule& schedule, const StepRun& run) {
  if (run.kind != StepRun::Kind::kTask) return false;
  switch (schedule.tasks[run.task].kind) {
    case Task::Kind::kReduce:
    case Task::Kind::kReduceLoss:
    case Task::Kind::kReduceSquares:
    case Task::Kind::kGather:
    case Task::Kind::kUnshard:
      return true;
    default:
      return false;
  }
}

namespace {

// The gradients and weights in the range of a task.
std::vector<Access> AccessesInRange(const Schedule& schedule,
                                    const StepRun& run, const Task& task) {
  std::vector<Access> accesses;
  const bool sums = task.kind == Task::Kind::kReduce;
  const bool fetches = task.kind == Task::Kind::kUnshard;
  const bool gathers = task.kind == Task::Kind::kGather || fetches;
  const bool replaces = sums && !run.operands.empty() && !task.adds;
  for (size_t p = 0; p < schedule.gradients.size() && !gathers; ++p) {
    const int parameter = static_cast<int>(p);
    if (!task.range.Overlaps(schedule.gradients[p])) continue;
    // Gradients that no run writes are zeroed after the sums, which only leave
    // something else there.
    const bool empty =
        sums && absl::c_linear_search(schedule.without_gradient, parameter);
    accesses.push_back(
        {.parameter = parameter, .reads = !empty && !replaces, .writes = sums});
  }
  if (task.kind != Task::Kind::kUpdate && !gathers) return accesses;
  const absl::Span<const ValueInfo> values = schedule.program->values();
  for (size_t v = 0; v < values.size(); ++v) {
    if (values[v].role == Role::kParameter &&
        task.range.Overlaps(schedule.gradients[values[v].parameter]) &&
        (!fetches || values[v].type.dtype == task.output.dtype)) {
      accesses.push_back(
          {.value = static_cast<int>(v), .reads = gathers, .writes = !fetches});
    }
  }
  return accesses;
}

}  // namespace

std::vector<Access> AccessesOf(const Schedule& schedule, const StepRun& run) {
  std::vector<Access> accesses;
  const auto add = [&accesses](absl::Span<const int> values, bool writes) {
    for (const int value : values) {
      if (value < 0) continue;
      accesses.push_back({.value = value, .reads = !writes, .writes = writes});
    }
  };
  add(run.operands, /*writes=*/false);
  add(run.d_results, /*writes=*/false);
  add(run.results, /*writes=*/run.kind != StepRun::Kind::kBackward);
  for (const GradientWrite& write : run.d_operands) {
    if (!write.wanted()) continue;
    accesses.push_back({.value = write.value,
                        .parameter = write.value < 0 ? write.parameter : -1,
                        .reads = write.accumulate,
                        .writes = true});
  }
  if (run.kind != StepRun::Kind::kTask) return accesses;
  const Task& task = schedule.tasks[run.task];
  if (task.kind == Task::Kind::kZero) {
    for (const int parameter : schedule.without_gradient) {
      accesses.push_back({.parameter = parameter, .writes = true});
    }
    return accesses;
  }
  const std::vector<Access> in_range = AccessesInRange(schedule, run, task);
  accesses.insert(accesses.end(), in_range.begin(), in_range.end());
  return accesses;
}

// Appends the backward pass: the ops in reverse order.
class ScheduleBuilder::BackwardPass {
 public:
  // `written` says by parameter whether an earlier run writes its gradient.
  BackwardPass(Schedule* schedule, int micro_batch, std::vector<bool>* written)
      : schedule_(*schedule),
        program_(*schedule->program),
        micro_batch_(micro_batch),
        gradient_(program_.values().size(), -1),
        numbers_(schedule->values_of[micro_batch]),
        written_(*written) {}

  void Append(Value loss) {
    loss_ = loss;
    gradient_[loss.index] = schedule_.loss_gradient;
    for (int op = static_cast<int>(program_.ops().size()) - 1; op >= 0; --op) {
      Differentiate(op);
    }
    for (size_t v = 0; v < program_.values().size(); ++v) {
      const bool is_input = program_.values()[v].role == Role::kInput;
      if (!is_input || gradient_[v] < 0) continue;
      schedule_.input_gradients.push_back({numbers_[v], gradient_[v]});
      schedule_.outputs.push_back(gradient_[v]);
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
    if (Wanted(program_, node).empty() || !HasGradient(node)) return;
    StepRun run = {
        .kind = StepRun::Kind::kBackward,
        .phase = Phase::kBackward,
        .op = op,
        .micro_batch = micro_batch_,
        .operands = NumbersOf(node.operands, numbers_),
        .results = NumbersOf(node.results, numbers_),
        .d_operands = std::vector<GradientWrite>(node.operands.size())};
    for (const Value result : node.results) {
      run.d_results.push_back(gradient_[result.index]);
    }
    const std::vector<int> contributions = GradientsOfOperands(node, &run);
    const bool computes = absl::c_any_of(
        run.d_operands, [](const GradientWrite& w) { return w.wanted(); });
    if (JoinsBackward(program_, node, loss_)) {
      run.kind = StepRun::Kind::kForwardBackward;
      schedule_.runs.push_back(std::move(run));
    } else if (computes) {
      KeepReads(program_, &run);
      schedule_.runs.push_back(std::move(run));
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (contributions[i] >= 0) {
        Accumulate(op, node.operands[i].index, contributions[i]);
      }
    }
  }

  // The number of each operand's gradient, passed through or written by `run`,
  // the backward of `node`; -1 without one and for parameters. Notes in
  // `run->d_operands` what the run writes.
  std::vector<int> GradientsOfOperands(const OpNode& node, StepRun* run) {
    const Positions wanted = Wanted(program_, node);
    std::vector<int> contributions(node.operands.size(), -1);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const int position = static_cast<int>(i);
      if (!wanted.Has(position)) continue;
      const ValueInfo& info = program_.info(node.operands[i]);
      if (const auto passed = node.op->PassesGradient(position);
          passed.has_value() && info.role != Role::kParameter) {
        contributions[i] = run->d_results[*passed];
        continue;
      }
      GradientWrite& write = run->d_operands[i];
      if (info.role == Role::kParameter) {
        write.parameter = info.parameter;
        write.accumulate = written_[info.parameter];
        written_[info.parameter] = true;
      } else {
        contributions[i] =
            NewValue({.name = absl::StrCat(info.name, ".gradient"),
                      .type = info.type,
                      .role = Role::kGradient});
        write.value = contributions[i];
      }
    }
    return contributions;
  }

  // Adds `contribution` to the gradient of `value`.
  void Accumulate(int op, int value, int contribution) {
    int& gradient = gradient_[value];
    if (gradient < 0) {
      gradient = contribution;
      return;
    }
    const int sum = NewValue(
        {.name = absl::StrCat(program_.values()[value].name, ".gradient"),
         .type = program_.values()[value].type,
         .role = Role::kGradient});
    schedule_.runs.push_back({.kind = StepRun::Kind::kAdd,
                              .phase = Phase::kBackward,
                              .op = op,
                              .micro_batch = micro_batch_,
                              .operands = {gradient, contribution},
                              .results = {sum}});
    gradient = sum;
  }

  Schedule& schedule_;
  const Program& program_;
  const int micro_batch_;
  Value loss_;
  std::vector<int> gradient_;        // by value of the program; -1: none yet
  const std::vector<int>& numbers_;  // by value of the program: the list's
  std::vector<bool>& written_;       // by parameter: its gradient
};

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
    case Phase::kReduce:
      return "reduce";
    case Phase::kClip:
      return "clip";
    case Phase::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

Positions StepRun::wanted() const {
  Positions wanted;
  for (size_t i = 0; i < d_operands.size(); ++i) {
    if (d_operands[i].wanted()) wanted.Add(static_cast<int>(i));
  }
  return wanted;
}

int Schedule::FirstBackward() const {
  const auto found = absl::c_find_if(runs, [](const StepRun& run) {
    return run.phase == Phase::kBackward || run.phase == Phase::kRecompute;
  });
  return static_cast<int>(found - runs.begin());
}

int Schedule::ScopeOf(const StepRun& run) const {
  return run.kind == StepRun::Kind::kTask ? 0 : program->ops()[run.op].scope;
}

std::string Schedule::NameOf(const StepRun& run) const {
  if (run.kind == StepRun::Kind::kTask) return tasks[run.task].name;
  const std::string& path = program->ops()[run.op].name;
  const std::string name = path.substr(path.rfind('/') + 1);
  return run.kind == StepRun::Kind::kAdd ? absl::StrCat("+ ", name) : name;
}

Cost Schedule::CostOf(const StepRun& run) const {
  switch (run.kind) {
    case StepRun::Kind::kForward:
      return program->ops()[run.op].op->ForwardCost();
    case StepRun::Kind::kBackward:
    case StepRun::Kind::kForwardBackward:
      return program->ops()[run.op].op->BackwardCost(run.wanted());
    case StepRun::Kind::kTask:
      return tasks[run.task].cost;
    case StepRun::Kind::kAdd:
      break;
  }
  const TensorType& sum = values[run.results[0]].type;
  return {.flops = static_cast<double>(sum.numel()), .bytes = 3 * sum.bytes()};
}

ScheduleBuilder::ScheduleBuilder(const Program& program, int micro_batches)
    : written_(program.parameters().size(), false) {
  schedule_.program = &program;
  schedule_.micro_batches = micro_batches;
  std::vector<ValueInfo>& values = schedule_.values;
  values.assign(program.values().begin(), program.values().end());
  std::vector<bool> shared(values.size(), false);
  for (const ProgramConstant& constant : program.constants()) {
    shared[constant.value.index] = true;
  }
  for (int m = 0; m < std::min(micro_batches, 3); ++m) {
    std::vector<int> numbers(program.values().size());
    for (size_t v = 0; v < numbers.size(); ++v) {
      numbers[v] = static_cast<int>(v);
      if (m == 0 || shared[v] || values[v].role == Role::kParameter) continue;
      numbers[v] = static_cast<int>(values.size());
      values.push_back(ValueInfo(program.values()[v]));
    }
    for (const Value output : program.outputs()) {
      schedule_.outputs.push_back(numbers[output.index]);
    }
    schedule_.values_of.push_back(std::move(numbers));
  }
}

void ScheduleBuilder::Forward(int micro_batch, Value loss) {
  loss_ = loss;
  const Program& program = *schedule_.program;
  const std::vector<int>& numbers = schedule_.values_of[micro_batch];
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const OpNode& node = program.ops()[i];
    if (JoinsBackward(program, node, loss)) continue;
    schedule_.runs.push_back({.kind = StepRun::Kind::kForward,
                              .phase = Phase::kForward,
                              .op = static_cast<int>(i),
                              .micro_batch = micro_batch,
                              .operands = NumbersOf(node.operands, numbers),
                              .results = NumbersOf(node.results, numbers)});
  }
}

void ScheduleBuilder::Backward(int micro_batch) {
  LossGradient(loss_);
  BackwardPass(&schedule_, micro_batch, &written_).Append(loss_);
}

void ScheduleBuilder::Add(Task task, Phase phase, int micro_batch,
                          std::vector<int> operands, std::vector<int> results) {
  schedule_.runs.push_back({.kind = StepRun::Kind::kTask,
                            .phase = phase,
                            .task = static_cast<int>(schedule_.tasks.size()),
                            .micro_batch = micro_batch,
                            .operands = std::move(operands),
                            .results = std::move(results)});
  schedule_.tasks.push_back(std::move(task));
}

int ScheduleBuilder::Loss() {
  if (total_loss_ < 0) total_loss_ = Scalar("sum of losses");
  return total_loss_;
}

int ScheduleBuilder::LossGradient(Value loss) {
  if (schedule_.loss_gradient < 0) {
    schedule_.loss_gradient = static_cast<int>(schedule_.values.size());
    schedule_.values.push_back({.name = "loss.gradient",
                                .type = schedule_.values[loss.index].type,
                                .role = Role::kInput});
  }
  return schedule_.loss_gradient;
}

int ScheduleBuilder::Scalar(std::string name) {
  schedule_.values.push_back({.name = std::move(name),
                              .type = {{}, at::kFloat},
                              .role = Role::kInput});
  return static_cast<int>(schedule_.values.size()) - 1;
}

int ScheduleBuilder::UpdateFactors() {
  if (schedule_.update_factors < 0) {
    schedule_.update_factors = Scalar("update.factors");
  }
  return schedule_.update_factors;
}

Schedule ScheduleBuilder::Build() && {
  for (size_t p = 0; p < written_.size(); ++p) {
    if (schedule_.loss_gradient >= 0 && !written_[p] &&
        schedule_.program->parameters()[p].trainable) {
      schedule_.without_gradient.push_back(static_cast<int>(p));
    }
  }
  return std::move(schedule_);
}

Schedule TrainingSchedule(const Program& program, Value loss) {
  ScheduleBuilder list(program, /*micro_batches=*/1);
  list.Forward(0, loss);
  list.Backward(0);
  return std::move(list).Build();
}

Schedule ForwardSchedule(const Program& program) {
  ScheduleBuilder list(program, /*micro_batches=*/1);
  list.Forward(0);
  return std::move(list).Build();
}

}  // namespace tessera
