#ifndef TRAINERS_RUN_STEP_TASKS_H_
#define TRAINERS_RUN_STEP_TASKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "framework/base/phase_observer.h"
#include "framework/dist/process_group.h"
#include "framework/optim/gradient_norm.h"
#include "framework/optim/non_finite_latch.h"
#include "framework/optim/optimizer.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "framework/program/schedule.h"
#include "trainers/plan/step_plan.h"

namespace tessera {

// Device scalars, so that the caller decides when to read them. The next step
// overwrites them. Their dtype is that of OpClass::kReduction.
struct StepMetrics {
  // Mean nats per token over the global batch: after Run() of the training
  // objective, with all of its terms; after Forward() of the cross entropy.
  at::Tensor loss;
  at::Tensor grad_norm;  // global L2 norm before clipping, unscaled
};

// The parts that a step uses.
struct StepParts {
  const StepPlan* plan = nullptr;
  ParameterStore* parameters = nullptr;
  Optimizer* optimizer = nullptr;
  ProcessGroup* group = nullptr;
  Communicator* shards = nullptr;    // the ranks that divide one state
  Communicator* replicas = nullptr;  // the ranks with the same part; or null
  LossScaler* scaler = nullptr;      // null unless the policy scales the loss
  std::optional<double> clip_norm;
  PhaseObserver* phases = nullptr;
};

// Does the tasks in the lists of a StepPlan: the sum of the losses, what the
// ranks exchange, the gradient's norm, clipping, loss scaling and the update.
// They enqueue work on the current stream and throw LibTorch's exceptions, or a
// status (ThrowIfError()).
class StepTasks {
 public:
  explicit StepTasks(const StepParts& parts);

  // A step with a loss or gradient that is not finite counts from this one on.
  void SetNextStep(int64_t step);
  // The same as in TrainStep: metrics(), BeforeNextUpdate(), first_bad_step().
  const StepMetrics& metrics() const { return metrics_; }
  void BeforeNextUpdate(std::function<void()> wait) {
    before_update_ = std::move(wait);
  }
  std::optional<int64_t> first_bad_step() const;

  // Device scalars that a step reads: 1 / valid targets, and the learning rate.
  const at::Tensor& loss_weight() const { return loss_weight_; }
  const at::Tensor& lr() const { return lr_; }
  // The seed of the backward pass, which Task::Kind::kBegin writes.
  const at::Tensor& seed_gradient() const { return seed_gradient_; }

  void Run(const Task& task, absl::Span<const at::Tensor> operands,
           absl::Span<const at::Tensor> results);
  // Sets whether the updates of the list change weights. They do not in the
  // first step after Update() if updates are deferred.
  void SetUpdates(bool updates) { updates_ = updates; }
  // Calls what BeforeNextUpdate() was given.
  void BeforeUpdate();
  // The updates of the list, at once.
  void Update();
  // Exchanges the weights and their average (Ema), with what ranks gather.
  void ExchangeEma();

 private:
  void Clip();
  // The elements of the flat buffer that this rank updates in a task.
  GradientRange UpdatedBy(const Task& task) const;
  // Does a task in which all ranks take part.
  void Communicate(const Task& task, absl::Span<const at::Tensor> operands,
                   absl::Span<const at::Tensor> results);
  // part = this rank's part of the sum of `whole` over all ranks.
  void SumOverRanks(const at::Tensor& whole, const at::Tensor& part);
  // This rank's part of a section of a flat buffer.
  at::Tensor OwnPart(const at::Tensor& section) const;

  const StepParts parts_;
  // "operation 2 of 5 (gradients)", for the tasks in which all ranks take part.
  const std::map<const Task*, std::string> operations_;
  StepMetrics metrics_;
  std::unique_ptr<NonFiniteLatch> latch_;
  // Whether this step must not change anything (bool [1]), from whether its
  // gradient is not finite and from the loss. Implements the scaler's or the
  // latch's rule.
  std::function<at::Tensor(const at::Tensor& nonfinite)> skip_;
  // The inverse loss scale is undefined if the scale is 1.
  at::Tensor loss_weight_, loss_scale_, inverse_loss_scale_, seed_gradient_,
      lr_;
  SumOfSquares squares_;
  bool updates_ = false;
  std::function<void()> before_update_;  // null: nothing to call
};

}  // namespace tessera

#endif  // TRAINERS_RUN_STEP_TASKS_H_
