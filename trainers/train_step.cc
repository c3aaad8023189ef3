#include "trainers/train_step.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "framework/optim/gradient_norm.h"

namespace tessera {
namespace {

at::Tensor DeviceScalar(const ParameterStore& parameters, double value = 0) {
  return at::full({1}, value,
                  at::dtype(at::kFloat).device(parameters.options().device));
}

}  // namespace

TrainStep::TrainStep(const Parts& parts)
    : parts_(parts),
      metrics_{DeviceScalar(*parts.parameters),
               DeviceScalar(*parts.parameters)},
      loss_weight_(DeviceScalar(*parts.parameters)),
      loss_scale_(DeviceScalar(*parts.parameters, 1)),
      seed_gradient_(DeviceScalar(*parts.parameters)),
      lr_(DeviceScalar(*parts.parameters)) {
  StartAt(0);
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

void TrainStep::StartAt(int64_t next_step) {
  latch_ = std::make_unique<NonFiniteLatch>(
      next_step, parts_.parameters->options().device);
}

absl::Status TrainStep::Run(const StepBatch& batch, double lr) {
  RETURN_IF_ERROR(ForwardBackward(batch));
  PhaseScope scope(parts_.phases, "optimizer");
  RETURN_IF_ERROR(Reduce());
  return StatusFromTorchOr([&] { return ClipAndUpdate(lr); });
}

absl::Status TrainStep::Gradients(const StepBatch& batch) {
  RETURN_IF_ERROR(ForwardBackward(batch));
  return Reduce();
}

absl::Status TrainStep::Forward(const StepBatch& batch) {
  return StatusFromTorch([&] {
    PhaseScope scope(parts_.phases, "forward");
    const at::NoGradGuard no_grad;
    metrics_.loss.zero_();
    for (const MicroBatch& micro_batch : batch.micro_batches) {
      metrics_.loss.add_(
          parts_.model->LossSum(micro_batch.ids_bs, micro_batch.targets_bs));
    }
    metrics_.loss.div_(static_cast<double>(batch.valid_targets));
  });
}

absl::Status TrainStep::ForwardBackward(const StepBatch& batch) {
  return StatusFromTorch([&] { ForwardBackwardOrThrow(batch); });
}

void TrainStep::ForwardBackwardOrThrow(const StepBatch& batch) {
  loss_weight_.fill_(1.0 / static_cast<double>(batch.valid_targets));
  at::mul_out(seed_gradient_, loss_weight_, loss_scale_);
  metrics_.loss.zero_();
  parts_.parameters->BeginGradients();
  bool first = true;
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    AccumulateMicroBatch(micro_batch, std::exchange(first, false));
  }
  parts_.parameters->ZeroUnwrittenGradients();
}

void TrainStep::AccumulateMicroBatch(const MicroBatch& micro_batch,
                                     bool first) {
  at::Tensor loss_sum;
  {
    PhaseScope scope(parts_.phases, "forward");
    const auto loss =
        first ? &TransformerLm::LossSumInGradients : &TransformerLm::LossSum;
    loss_sum =
        (parts_.model->*loss)(micro_batch.ids_bs, micro_batch.targets_bs);
    metrics_.loss.addcmul_(loss_sum.detach(), loss_weight_);
  }
  // At no time both passes' workspaces.
  const c10::Device device = parts_.parameters->options().device;
  ReleaseBlasWorkspaces(device);
  {
    PhaseScope scope(parts_.phases, "backward");
    torch::autograd::backward({loss_sum}, {seed_gradient_.squeeze(0)});
  }
  ReleaseBlasWorkspaces(device);
}

absl::Status TrainStep::Reduce() {
  RETURN_IF_ERROR(parts_.group->AllReduceInBuckets(parts_.parameters->grad(),
                                                   parts_.bucket_bytes));
  return parts_.group->AllReduceSum(metrics_.loss);
}

absl::Status TrainStep::ClipAndUpdate(double lr) {
  const at::NoGradGuard no_grad;
  ASSIGN_OR_RETURN(const at::Tensor squares,
                   SumOfSquares(parts_.parameters->grad()));
  const GradientScale gradient =
      MakeGradientScale(squares, parts_.clip_norm, inverse_loss_scale_);
  metrics_.grad_norm.copy_(gradient.norm);
  lr_.fill_(lr);
  return parts_.optimizer->Step({.lr = lr_,
                                 .grad_scale = gradient.scale,
                                 .skip = skip_(gradient.nonfinite)});
}

std::optional<int64_t> TrainStep::first_bad_step() const {
  const int64_t step = latch_->first_bad_step().item<int64_t>();
  if (step < 0) return std::nullopt;
  return step;
}

}  // namespace tessera
