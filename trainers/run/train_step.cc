#include "trainers/run/train_step.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "attention_backends/document_bounds.h"
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

TrainStep::TrainStep(const Parts& parts)
    : parts_(parts),
      tasks_(parts),
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
  train_.SetInput(parts.plan->train.loss_gradient,
                  tasks_.seed_gradient().squeeze(0));
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
    evaluation_work_.SetGraph(MakeCudaGraphBeside(*step_work_.graph()));
    gradient_work_.SetGraph(MakeCudaGraphBeside(*step_work_.graph()));
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
  return step_work_.Do(
      [this] { return StatusFromTorch([this] { train_.Run(); }); });
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
                           tasks_.seed_gradient().squeeze(0));
    }
    return gradient_work_.Do(
        [this] { return StatusFromTorch([this] { gradients_->Run(); }); });
  });
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
    RETURN_IF_ERROR(evaluation_work_.Do(
        [this] { return StatusFromTorch([this] { evaluate_->Run(); }); }));
    metrics().loss.div_(static_cast<double>(batch.valid_targets));
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
  tasks_.loss_weight().fill_(1.0 / static_cast<double>(batch.valid_targets));
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

}  // namespace tessera
