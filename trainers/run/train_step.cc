#include "trainers/run/train_step.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention_backends/document_bounds.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"

namespace tessera {
namespace {

// The first time loads kernels and creates handles; the second finds them.
constexpr int64_t kRehearsals = 2;

at::Tensor DeviceScalar(const ParameterStore& parameters,
                        at::ScalarType dtype = at::kFloat, double value = 0) {
  return at::full({1}, value,
                  at::dtype(dtype).device(parameters.options().device));
}

// Undefined if no list has an arena.
at::Tensor MakeArena(const StepPlan& plan, const ParameterStore& parameters) {
  if (plan.arena_bytes() == 0) return {};
  return at::empty({plan.arena_bytes()},
                   at::dtype(at::kByte).device(parameters.options().device));
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

TrainStep::TrainStep(const Parts& parts)
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
               parts.plan->train.shards),
      arena_(MakeArena(*parts.plan, *parts.parameters)),
      train_(parts.plan->train, parts.plan->train_lifetimes, *parts.parameters,
             {.phases = parts.phases, .tasks = this, .arena = arena_}) {
  SetNextStep(0);
  const LossProgram& loss = parts.plan->loss;
  std::vector<int64_t> shape_mbs = loss.program.info(loss.ids).type.shape;
  shape_mbs.insert(shape_mbs.begin(), parts.plan->micro_batches);
  const auto options =
      at::dtype(at::kLong).device(parts.parameters->options().device);
  ids_mbs_ = at::zeros(shape_mbs, options);
  targets_mbs_ = at::zeros(shape_mbs, options);
  if (loss.documents.has_value()) {
    positions_mbs_ = at::zeros(shape_mbs, options);
    documents_m2bs_ = at::zeros({shape_mbs[0], 2, shape_mbs[1], shape_mbs[2]},
                                options.dtype(at::kInt));
  }
  SetInputs(train_);
  train_.SetInput(parts.plan->train.loss_gradient, seed_gradient_.squeeze(0));
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

void TrainStep::SetNextStep(int64_t step) {
  next_step_ = step;
  latch_ = std::make_unique<NonFiniteLatch>(
      step, parts_.parameters->options().device);
  DropGraphs();  // a recorded step holds the old latch
}

void TrainStep::DropGraphs() {
  if constexpr (kCudaBuild) {
    if (!parts_.plan->graph) return;
    const at::Device device = parts_.parameters->options().device;
    step_work_.graph = MakeCudaGraph(device);
    evaluation_work_.graph = MakeCudaGraphBeside(*step_work_.graph);
    gradient_work_.graph = MakeCudaGraphBeside(*step_work_.graph);
  }
}

absl::Status TrainStep::Run(const Batch& batch, double lr) {
  RETURN_IF_ERROR(Prepare(batch, lr));
  return Launch();
}

absl::Status TrainStep::Prepare(const Batch& batch, double lr) {
  return StatusFromTorch([&] {
    const PhaseScope scope(parts_.phases, "prepare");
    parts_.group->SetStep(++next_step_);
    CopyBatch(batch);
    lr_.fill_(lr);
  });
}

absl::Status TrainStep::Launch() {
  const bool defers = parts_.plan->train.starts_pending;
  updates_ = pending_ || !defers;
  pending_ = defers;
  if (updates_ && step_work_.graph != nullptr) {
    RETURN_IF_ERROR(StatusFromTorch([this] { BeforeUpdate(); }));
  }
  return Do(step_work_,
            [this] { return StatusFromTorch([this] { train_.Run(); }); });
}

void TrainStep::BeforeUpdate() {
  if (before_update_ == nullptr) return;
  std::exchange(before_update_, nullptr)();
}

absl::Status TrainStep::Flush() {
  if (!std::exchange(pending_, false)) return absl::OkStatus();
  return StatusFromTorch([this] {
    const PhaseScope scope(parts_.phases, PhaseName(Phase::kOptimizer));
    BeforeUpdate();
    for (const StepRun& run : parts_.plan->train.runs) {
      if (parts_.plan->train.IsTask(run, Task::Kind::kUpdate) ||
          parts_.plan->train.IsTask(run, Task::Kind::kGather)) {
        Run(parts_.plan->train.tasks[run.task], {}, {});
      }
    }
    parts_.optimizer->Discard();
  });
}

absl::Status TrainStep::Do(Work& work,
                           absl::FunctionRef<absl::Status()> issue) {
  if (work.graph == nullptr) return issue();
  if (work.rehearsals < kRehearsals) {
    ++work.rehearsals;
    return work.graph->Rehearse(issue);
  }
  if (!work.graph->captured()) RETURN_IF_ERROR(work.graph->Capture(issue));
  return work.graph->Launch();
}

absl::Status TrainStep::ForwardBackward(const Batch& batch) {
  RETURN_IF_ERROR(Flush());
  return StatusFromTorchOr([&]() -> absl::Status {
    parts_.group->SetStep(next_step_);
    CopyBatch(batch);
    if (gradients_ == nullptr) {
      const StepPlan& plan = *parts_.plan;
      gradients_ = std::make_unique<Executor>(
          plan.gradients, plan.gradients_lifetimes, *parts_.parameters,
          ExecutorOptions{.phases = parts_.phases,
                          .tasks = this,
                          .arena = arena_,
                          .constants = &train_});
      SetInputs(*gradients_);
      gradients_->SetInput(plan.gradients.loss_gradient,
                           seed_gradient_.squeeze(0));
    }
    return Do(gradient_work_, [this] {
      return StatusFromTorch([this] { gradients_->Run(); });
    });
  });
}

absl::Status TrainStep::ComputeGradients(const Batch& batch) {
  RETURN_IF_ERROR(ForwardBackward(batch));
  const PhaseScope scope(parts_.phases, PhaseName(Phase::kReduce));
  if (!parts_.plan->sharding.divides_gradients()) {  // else it was summed
    RETURN_IF_ERROR(parts_.group->AllReduceSum(parts_.parameters->grad()));
  }
  return parts_.group->AllReduceSum(metrics_.loss);
}

absl::Status TrainStep::Forward(const Batch& batch) {
  RETURN_IF_ERROR(Flush());
  return StatusFromTorchOr([&]() -> absl::Status {
    parts_.group->SetStep(next_step_);  // a graph counts from there on
    CopyBatch(batch);
    const StepPlan& plan = *parts_.plan;
    if (evaluate_ == nullptr) {
      evaluate_ = std::make_unique<Executor>(
          plan.evaluate, plan.evaluate_lifetimes, *parts_.parameters,
          ExecutorOptions{.phases = plan.graph ? nullptr : parts_.phases,
                          .tasks = this,
                          .arena = arena_,
                          .constants = &train_});
      SetInputs(*evaluate_);
    }
    RETURN_IF_ERROR(Do(evaluation_work_, [this] {
      return StatusFromTorch([this] { evaluate_->Run(); });
    }));
    metrics_.loss.div_(static_cast<double>(batch.valid_targets));
    return absl::OkStatus();
  });
}

void TrainStep::CopyBatch(const Batch& batch) {
  ids_mbs_.copy_(batch.ids_mbs, /*non_blocking=*/true);
  targets_mbs_.copy_(batch.targets_mbs, /*non_blocking=*/true);
  if (positions_mbs_.defined()) {
    positions_mbs_.copy_(batch.positions_mbs, /*non_blocking=*/true);
    DocumentBounds(positions_mbs_, documents_m2bs_);
  }
  loss_weight_.fill_(1.0 / static_cast<double>(batch.valid_targets));
}

void TrainStep::SetInputs(Executor& executor) const {
  const int listed = parts_.plan->train.listed_micro_batches();
  for (int m = 0; m < listed; ++m) {
    const bool last = m + 1 == listed;
    SetInput(executor, last ? parts_.plan->micro_batches - 1 : m, m);
  }
}

void TrainStep::SetInput(Executor& executor, int micro_batch, int as) const {
  // Training and evaluation have the same values.
  const Schedule& train = parts_.plan->train;
  const LossProgram& loss = parts_.plan->loss;
  executor.SetInput(train.ValueOf(loss.ids, as), ids_mbs_[micro_batch]);
  executor.SetInput(train.ValueOf(loss.targets, as), targets_mbs_[micro_batch]);
  if (!loss.documents.has_value()) return;
  executor.SetInput(train.ValueOf(*loss.positions, as),
                    positions_mbs_[micro_batch]);
  executor.SetInput(train.ValueOf(*loss.documents, as),
                    documents_m2bs_[micro_batch]);
}

void TrainStep::Run(const Task& task, absl::Span<const at::Tensor> operands,
                    absl::Span<const at::Tensor> results) {
  switch (task.kind) {
    case Task::Kind::kBegin:
      metrics_.loss.zero_();
      if (!results.empty()) {
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
      const Schedule& train = parts_.plan->train;
      const GradientRange range =
          task.own_part ? train.shards.HeldPart(task.range) : task.range;
      const int64_t size = parts_.parameters->grad().element_size();
      ThrowIfError(
          parts_.optimizer->Update(range.begin / size, range.end / size));
      break;
    }
  }
}

void TrainStep::Clip() {
  const absl::StatusOr<at::Tensor> squares = squares_.Total();
  ThrowIfError(squares.status());
  const GradientScale gradient =
      MakeGradientScale(*squares, parts_.clip_norm, inverse_loss_scale_);
  metrics_.grad_norm.copy_(gradient.norm);
  ThrowIfError(parts_.optimizer->Prepare({.lr = lr_,
                                          .grad_scale = gradient.scale,
                                          .skip = skip_(gradient.nonfinite)}));
}

void TrainStep::Communicate(const Task& task,
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

void TrainStep::SumOverRanks(const at::Tensor& whole, const at::Tensor& part) {
  ThrowIfError(parts_.shards->ReduceScatterSum(whole, part));
  if (parts_.replicas == nullptr) return;
  ThrowIfError(parts_.replicas->AllReduceSum(part));
}

at::Tensor TrainStep::OwnPart(const at::Tensor& section) const {
  const Sharding& sharding = parts_.plan->sharding;
  return section.chunk(sharding.shards)[sharding.index];
}

std::optional<int64_t> TrainStep::first_bad_step() const {
  const int64_t step = latch_->first_bad_step().item<int64_t>();
  if (step < 0) return std::nullopt;
  return step;
}

}  // namespace tessera
