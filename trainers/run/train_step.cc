#include "trainers/run/train_step.h"

#include <ATen/ATen.h>

#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"

namespace tessera {
namespace {

// Undefined if no list has an arena.
at::Tensor MakeArena(const StepPlan& plan, const ParameterStore& parameters) {
  if (plan.arena_bytes() == 0) return {};
  return at::empty({plan.arena_bytes()},
                   at::dtype(at::kByte).device(parameters.options().device));
}

}  // namespace

TrainStep::TrainStep(const StepParts& parts)
    : parts_(parts),
      tasks_(parts),
      batch_(*parts.plan, parts.parameters->options().device),
      arena_(MakeArena(*parts.plan, *parts.parameters)),
      train_(parts.plan->train, parts.plan->train_lifetimes, *parts.parameters,
             {.phases = parts.phases, .tasks = this, .arena = arena_}),
      gradients_{parts.plan->gradients, parts.plan->gradients_lifetimes,
                 parts.phases},
      evaluation_{parts.plan->evaluate, parts.plan->evaluate_lifetimes,
                  parts.plan->graph ? nullptr : parts.phases} {
  SetNextStep(0);
  SetInputs(parts.plan->train, train_);
}

void TrainStep::SetInputs(const Schedule& list, Executor& executor) const {
  batch_.SetInputs(executor);
  if (list.loss_gradient < 0) return;
  executor.SetInput(list.loss_gradient, tasks_.seed_gradient().squeeze(0));
}

void TrainStep::SetNextStep(int64_t step) {
  next_step_ = step;
  tasks_.SetNextStep(step);
  DropGraphs();  // a recorded step holds the old latch
}

void TrainStep::DropGraphs() {
  if constexpr (kCudaBuild) {
    if (!parts_.plan->graph) return;
    const at::Device device = parts_.parameters->options().device;
    step_work_.SetGraph(MakeCudaGraph(device));
    evaluation_.work.SetGraph(MakeCudaGraphBeside(*step_work_.graph()));
    gradients_.work.SetGraph(MakeCudaGraphBeside(*step_work_.graph()));
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
    tasks_.lr().fill_(lr);
  });
}

absl::Status TrainStep::Launch() {
  const bool defers = parts_.plan->train.starts_pending;
  const bool updates = pending_ || !defers;
  pending_ = defers;
  tasks_.SetUpdates(updates);
  if (updates && step_work_.graph() != nullptr) {
    RETURN_IF_ERROR(StatusFromTorch([this] { tasks_.BeforeUpdate(); }));
  }
  RETURN_IF_ERROR(step_work_.Do(
      [this] { return StatusFromTorch([this] { train_.Run(); }); }));
  return StatusFromTorch([this] { parts_.group->EndStep(); });
}

absl::Status TrainStep::Flush() {
  if (!std::exchange(pending_, false)) return absl::OkStatus();
  return StatusFromTorch([this] {
    const PhaseScope scope(parts_.phases, PhaseName(Phase::kOptimizer));
    tasks_.Update();
  });
}

absl::Status TrainStep::ExchangeEma() {
  RETURN_IF_ERROR(Flush());
  return StatusFromTorch([this] { tasks_.ExchangeEma(); });
}

absl::Status TrainStep::RunOther(const Batch& batch, OtherList* other) {
  RETURN_IF_ERROR(Flush());
  return StatusFromTorchOr([&]() -> absl::Status {
    parts_.group->SetStep(next_step_);
    CopyBatch(batch);
    if (other->executor == nullptr) {
      other->executor = std::make_unique<Executor>(
          other->list, other->lifetimes, *parts_.parameters,
          ExecutorOptions{.phases = other->phases,
                          .tasks = this,
                          .arena = arena_,
                          .constants = &train_});
      SetInputs(other->list, *other->executor);
    }
    RETURN_IF_ERROR(other->work.Do(
        [&] { return StatusFromTorch([&] { other->executor->Run(); }); }));
    parts_.group->EndStep();
    return absl::OkStatus();
  });
}

absl::Status TrainStep::ForwardBackward(const Batch& batch) {
  return RunOther(batch, &gradients_);
}

absl::Status TrainStep::ComputeGradients(const Batch& batch) {
  RETURN_IF_ERROR(ForwardBackward(batch));
  const PhaseScope scope(parts_.phases, PhaseName(Phase::kReduce));
  if (!parts_.plan->sharding.divides_gradients()) {  // else it was summed
    RETURN_IF_ERROR(parts_.group->AllReduceSum(parts_.parameters->grad()));
  }
  return parts_.group->AllReduceSum(metrics().loss);
}

absl::Status TrainStep::Forward(const Batch& batch) {
  RETURN_IF_ERROR(RunOther(batch, &evaluation_));
  return StatusFromTorch(
      [&] { metrics().loss.div_(static_cast<double>(batch.valid_targets)); });
}

void TrainStep::CopyBatch(const Batch& batch) {
  batch_.Copy(batch);
  tasks_.loss_weight().fill_(1.0 / static_cast<double>(batch.valid_targets));
}

}  // namespace tessera
