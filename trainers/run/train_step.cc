#include "trainers/run/train_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/cuda_build.h"
#include "framework/optim/gradient_norm.h"

namespace tessera {
namespace {

// The first time loads kernels and creates handles; the second finds them.
constexpr int64_t kRehearsals = 2;

at::Tensor DeviceScalar(const ParameterStore& parameters,
                        at::ScalarType dtype = at::kFloat, double value = 0) {
  return at::full({1}, value,
                  at::dtype(dtype).device(parameters.options().device));
}

// One buffer for training and evaluation; undefined if neither has an arena.
at::Tensor MakeArena(const StepPlan& plan, const ParameterStore& parameters) {
  const int64_t bytes = std::max(plan.train_lifetimes.arena_bytes,
                                 plan.evaluate_lifetimes.arena_bytes);
  if (bytes == 0) return {};
  return at::empty({bytes},
                   at::dtype(at::kByte).device(parameters.options().device));
}

}  // namespace

TrainStep::TrainStep(const Parts& parts)
    : parts_(parts),
      metrics_{DeviceScalar(*parts.parameters, parts.plan->reduction),
               DeviceScalar(*parts.parameters, parts.plan->reduction)},
      loss_weight_(DeviceScalar(*parts.parameters, parts.plan->reduction)),
      loss_scale_(DeviceScalar(*parts.parameters, at::kFloat, 1)),
      seed_gradient_(
          DeviceScalar(*parts.parameters,
                       parts.plan->train.values[parts.plan->train.loss_gradient]
                           .type.dtype)),
      lr_(DeviceScalar(*parts.parameters)),
      arena_(MakeArena(*parts.plan, *parts.parameters)),
      train_(parts.plan->train, parts.plan->train_lifetimes, *parts.parameters,
             parts.phases, {.arena = arena_}) {
  SetNextStep(0);
  const LossProgram& loss = parts.plan->loss;
  std::vector<int64_t> shape_mbs = loss.program.info(loss.ids).type.shape;
  shape_mbs.insert(shape_mbs.begin(), parts.plan->micro_batches);
  const auto options =
      at::dtype(at::kLong).device(parts.parameters->options().device);
  ids_mbs_ = at::zeros(shape_mbs, options);
  targets_mbs_ = at::zeros(shape_mbs, options);
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
  const at::Device device = parts_.parameters->options().device;
  latch_ = std::make_unique<NonFiniteLatch>(step, device);
  if constexpr (kCudaBuild) {
    if (!parts_.plan->graph) return;
    // A recorded step holds the old latch.
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
    CopyBatch(batch);
    lr_.fill_(lr);
  });
}

absl::Status TrainStep::Launch() {
  return Do(step_work_, [this] { return Issue(); });
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

absl::Status TrainStep::Issue() {
  RETURN_IF_ERROR(StatusFromTorch([&] { RunForwardBackward(); }));
  RETURN_IF_ERROR(Reduce());
  RETURN_IF_ERROR(Clip());
  return Update();
}

absl::Status TrainStep::ForwardBackward(const Batch& batch) {
  RETURN_IF_ERROR(StatusFromTorch([&] { CopyBatch(batch); }));
  return Do(gradient_work_, [this] {
    return StatusFromTorch([this] { RunForwardBackward(); });
  });
}

absl::Status TrainStep::ComputeGradients(const Batch& batch) {
  RETURN_IF_ERROR(ForwardBackward(batch));
  return Reduce();
}

absl::Status TrainStep::Forward(const Batch& batch) {
  return StatusFromTorchOr([&]() -> absl::Status {
    CopyBatch(batch);
    RETURN_IF_ERROR(Do(evaluation_work_, [this] {
      return StatusFromTorch([this] { RunForward(); });
    }));
    metrics_.loss.div_(static_cast<double>(batch.valid_targets));
    return absl::OkStatus();
  });
}

void TrainStep::CopyBatch(const Batch& batch) {
  ids_mbs_.copy_(batch.ids_mbs, /*non_blocking=*/true);
  targets_mbs_.copy_(batch.targets_mbs, /*non_blocking=*/true);
  loss_weight_.fill_(1.0 / static_cast<double>(batch.valid_targets));
}

void TrainStep::SetInputs(const LossProgram& loss, int64_t micro_batch,
                          Executor& executor) const {
  executor.SetInput(loss.ids, ids_mbs_[micro_batch]);
  executor.SetInput(loss.targets, targets_mbs_[micro_batch]);
}

void TrainStep::RunForward() {
  const StepPlan& plan = *parts_.plan;
  PhaseObserver* const phases = plan.graph ? nullptr : parts_.phases;
  const PhaseScope scope(phases, "forward");
  if (evaluate_ == nullptr) {
    evaluate_ = std::make_unique<Executor>(
        plan.evaluate, plan.evaluate_lifetimes, *parts_.parameters, phases,
        SharedMemory{.arena = arena_, .constants = &train_});
  }
  metrics_.loss.zero_();
  for (int64_t m = 0; m < plan.micro_batches; ++m) {
    SetInputs(plan.evaluation_loss, m, *evaluate_);
    evaluate_->RunForward();
    metrics_.loss.add_(evaluate_->Get(plan.evaluation_loss.loss));
  }
}

void TrainStep::RunForwardBackward() {
  const StepPlan& plan = *parts_.plan;
  at::mul_out(seed_gradient_, loss_weight_, loss_scale_);
  metrics_.loss.zero_();
  train_.SetInput(plan.train.loss_gradient, seed_gradient_.squeeze(0));
  bool accumulate = false;
  for (int64_t m = 0; m < plan.micro_batches; ++m) {
    SetInputs(plan.loss, m, train_);
    {
      PhaseScope scope(parts_.phases, "forward");
      train_.RunForward();
    }
    if (kept_bytes_ == 0) kept_bytes_ = train_.live_bytes();
    {
      PhaseScope scope(parts_.phases, "backward");
      train_.RunBackward(std::exchange(accumulate, true));
      metrics_.loss.addcmul_(train_.Get(plan.loss.loss).to(plan.reduction),
                             loss_weight_);
    }
  }
  for (const int parameter : plan.train.without_gradient) {
    parts_.parameters->Get(plan.loss.program.parameters()[parameter].name)
        .grad()
        .zero_();
  }
  parts_.parameters->ZeroGradientGaps();
}

absl::Status TrainStep::Reduce() {
  const PhaseScope scope(parts_.phases, "reduce");
  RETURN_IF_ERROR(parts_.group->AllReduceInBuckets(parts_.parameters->grad(),
                                                   parts_.bucket_bytes));
  return parts_.group->AllReduceSum(metrics_.loss);
}

absl::Status TrainStep::Clip() {
  const PhaseScope scope(parts_.phases, "clip");
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    ASSIGN_OR_RETURN(
        const at::Tensor squares,
        SumOfSquares(parts_.parameters->grad(), parts_.plan->reduction));
    const GradientScale gradient =
        MakeGradientScale(squares, parts_.clip_norm, inverse_loss_scale_);
    metrics_.grad_norm.copy_(gradient.norm);
    gradient_scale_ = gradient.scale;
    nonfinite_ = gradient.nonfinite;
    return absl::OkStatus();
  });
}

absl::Status TrainStep::Update() {
  const PhaseScope scope(parts_.phases, "optimizer");
  return StatusFromTorchOr([&] {
    const at::NoGradGuard no_grad;
    return parts_.optimizer->Step(
        {.lr = lr_, .grad_scale = gradient_scale_, .skip = skip_(nonfinite_)});
  });
}

std::optional<int64_t> TrainStep::first_bad_step() const {
  const int64_t step = latch_->first_bad_step().item<int64_t>();
  if (step < 0) return std::nullopt;
  return step;
}

}  // namespace tessera
