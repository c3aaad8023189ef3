#include "trainers/run/step_tasks.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

at::Tensor DeviceScalar(const ParameterStore& parameters,
                        at::ScalarType dtype = at::kFloat, double value = 0) {
  return at::full({1}, value,
                  at::dtype(dtype).device(parameters.options().device));
}

// The joint buffer of a task, in which `first` lies.
at::Tensor JointBufferOf(const at::Tensor& first, const Task& task) {
  char* const begin =
      static_cast<char*>(first.mutable_data_ptr()) - task.before_first;
  return at::for_blob(begin, {task.output.numel()})
      .options(first.options())
      .target_device(first.device())
      .make_tensor();
}

std::map<const Task*, std::string> OperationsOf(const Schedule& schedule) {
  std::vector<const Task*> tasks;
  for (const StepRun& run : schedule.runs) {
    if (!IsCollective(schedule, run)) continue;
    tasks.push_back(&schedule.tasks[run.task]);
  }
  std::map<const Task*, std::string> operations;
  for (size_t i = 0; i < tasks.size(); ++i) {
    operations[tasks[i]] = absl::StrCat(
        "operation ", i + 1, " of ", tasks.size(), " (", tasks[i]->name, ")");
  }
  return operations;
}

}  // namespace

StepTasks::StepTasks(const StepParts& parts)
    : parts_(parts),
      operations_(OperationsOf(parts.plan->train)),
      metrics_{DeviceScalar(*parts.parameters, parts.plan->reduction),
               DeviceScalar(*parts.parameters, parts.plan->reduction)},
      loss_weight_(DeviceScalar(*parts.parameters, parts.plan->reduction)),
      loss_scale_(DeviceScalar(*parts.parameters, at::kFloat, 1)),
      seed_gradient_(
          DeviceScalar(*parts.parameters,
                       parts.plan->train.values[parts.plan->train.loss_gradient]
                           .type.dtype)),
      lr_(DeviceScalar(*parts.parameters)),
      squares_(parts.parameters->grad(), parts.plan->train.gradients,
               parts.plan->train.shards) {
  if (parts_.scaler == nullptr) {
    skip_ = [this](const at::Tensor& nonfinite) {
      return latch_->Update(NotFinite(metrics_.loss).logical_or_(nonfinite));
    };
    return;
  }
  loss_scale_ = parts_.scaler->scale();
  inverse_loss_scale_ = parts_.scaler->inverse_scale();
  skip_ = [this](const at::Tensor& nonfinite) {
    const at::Tensor hopeless =
        NotFinite(metrics_.loss)
            .logical_or_(parts_.scaler->at_floor().logical_and_(nonfinite));
    parts_.scaler->Update(nonfinite);
    return latch_->Update(hopeless).logical_or(nonfinite);
  };
}

void StepTasks::SetNextStep(int64_t step) {
  latch_ = std::make_unique<NonFiniteLatch>(
      step, parts_.parameters->options().device);
}

void StepTasks::BeforeUpdate() {
  if (before_update_ == nullptr) return;
  std::exchange(before_update_, nullptr)();
}

void StepTasks::Run(const Task& task, absl::Span<const at::Tensor> operands,
                    absl::Span<const at::Tensor> results) {
  switch (task.kind) {
    case Task::Kind::kBegin:
      metrics_.loss.zero_();
      if (results.size() > 1) {  // in training
        at::mul_out(seed_gradient_, loss_weight_, loss_scale_);
      }
      break;
    case Task::Kind::kAddLoss:
      metrics_.loss.add_(operands[0]);
      break;
    case Task::Kind::kAddWeightedLoss:
      metrics_.loss.addcmul_(operands[0].to(parts_.plan->reduction),
                             loss_weight_);
      break;
    case Task::Kind::kReduce:
    case Task::Kind::kReduceSquares:
    case Task::Kind::kReduceLoss:
    case Task::Kind::kGather:
    case Task::Kind::kUnshard:
      if (const auto name = operations_.find(&task); name != operations_.end())
        parts_.group->SetOperation(name->second);
      Communicate(task, operands, results);
      parts_.group->SetOperation("");
      break;
    case Task::Kind::kZero:
      for (const int parameter : parts_.plan->train.without_gradient) {
        const auto& blocks = parts_.plan->loss.program.parameters();
        at::Tensor(parts_.parameters->Get(blocks[parameter].name).held_grad())
            .zero_();
      }
      parts_.parameters->ZeroGradientGaps();
      break;
    case Task::Kind::kSumOfSquares:
      ThrowIfError(squares_.SumSegments(task.range));
      break;
    case Task::Kind::kClip:
      Clip();
      break;
    case Task::Kind::kUpdate: {
      if (updates_) BeforeUpdate();
      const GradientRange range = UpdatedBy(task);
      ThrowIfError(parts_.optimizer->Update(range.begin, range.end));
      break;
    }
  }
}

void StepTasks::Update() {
  BeforeUpdate();
  const Schedule& train = parts_.plan->train;
  for (const StepRun& run : train.runs) {
    if (train.IsTask(run, Task::Kind::kUpdate) ||
        train.IsTask(run, Task::Kind::kGather)) {
      Run(train.tasks[run.task], {}, {});
    }
  }
  parts_.optimizer->Discard();
}

void StepTasks::ExchangeEma() {
  BeforeUpdate();
  const Schedule& train = parts_.plan->train;
  for (const StepRun& run : train.runs) {
    if (train.IsTask(run, Task::Kind::kUpdate)) {
      const GradientRange range = UpdatedBy(train.tasks[run.task]);
      ThrowIfError(parts_.optimizer->ema()->Exchange(range.begin, range.end));
    } else if (train.IsTask(run, Task::Kind::kGather)) {
      Run(train.tasks[run.task], {}, {});
    }
  }
}

GradientRange StepTasks::UpdatedBy(const Task& task) const {
  const GradientRange range =
      task.own_part ? parts_.plan->train.shards.HeldPart(task.range)
                    : task.range;
  const int64_t size = parts_.parameters->grad().element_size();
  return {range.begin / size, range.end / size};
}

void StepTasks::Clip() {
  const absl::StatusOr<at::Tensor> squares = squares_.Total();
  ThrowIfError(squares.status());
  const GradientScale gradient =
      MakeGradientScale(*squares, parts_.clip_norm, inverse_loss_scale_);
  metrics_.grad_norm.copy_(gradient.norm);
  ThrowIfError(parts_.optimizer->Prepare({.lr = lr_,
                                          .grad_scale = gradient.scale,
                                          .skip = skip_(gradient.nonfinite)}));
}

void StepTasks::Communicate(const Task& task,
                            absl::Span<const at::Tensor> operands,
                            absl::Span<const at::Tensor> results) {
  Communicator& shards = *parts_.shards;
  const ParameterStore& parameters = *parts_.parameters;
  const int64_t size = parameters.grad().element_size();
  const int64_t begin = task.range.begin / size, end = task.range.end / size;
  switch (task.kind) {
    case Task::Kind::kReduce: {
      const at::Tensor whole = operands.empty()
                                   ? parameters.grad().slice(0, begin, end)
                                   : JointBufferOf(operands[0], task);
      const at::Tensor part = OwnPart(whole);
      if (operands.empty()) {
        SumOverRanks(whole, part);
        if (!task.own_part) ThrowIfError(shards.AllGather(part, whole));
        break;
      }
      at::Tensor sum =
          parameters.HeldGradient(parameters.SectionOf(begin)).detach();
      SumOverRanks(whole, task.adds ? part : sum);
      if (task.adds) sum.add_(part);
      break;
    }
    case Task::Kind::kUnshard:
      ThrowIfError(
          shards.AllGather(parameters.HeldWeights(parameters.SectionOf(begin),
                                                  task.output.dtype),
                           JointBufferOf(results[0], task)));
      break;
    case Task::Kind::kReduceSquares:
      ThrowIfError(shards.AllReduceSum(squares_.sums()));
      break;
    case Task::Kind::kReduceLoss:
      ThrowIfError(parts_.group->AllReduceSum(metrics_.loss));
      break;
    default:  // kGather
      for (const at::Tensor& whole :
           parameters.WholeWeights(parameters.SectionOf(begin))) {
        ThrowIfError(shards.AllGather(OwnPart(whole), whole));
      }
  }
}

void StepTasks::SumOverRanks(const at::Tensor& whole, const at::Tensor& part) {
  ThrowIfError(parts_.shards->ReduceScatterSum(whole, part));
  if (parts_.replicas == nullptr) return;
  ThrowIfError(parts_.replicas->AllReduceSum(part));
}

at::Tensor StepTasks::OwnPart(const at::Tensor& section) const {
  const Sharding& sharding = parts_.plan->sharding;
  return section.chunk(sharding.shards)[sharding.index];
}

std::optional<int64_t> StepTasks::first_bad_step() const {
  const int64_t step = latch_->first_bad_step().item<int64_t>();
  if (step < 0) return std::nullopt;
  return step;
}

}  // namespace tessera
