#ifndef TRAINERS_RUN_TRAIN_STEP_H_
#define TRAINERS_RUN_TRAIN_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/dist/process_group.h"
#include "framework/optim/adamw.h"
#include "framework/optim/non_finite_latch.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "framework/program/executor.h"
#include "trainers/plan/step_plan.h"
#include "trainers/run/batch.h"

namespace tessera {

// Device scalars, so that reading them is the caller's choice. The next step
// overwrites them. In the dtype of OpClass::kReduction.
struct StepMetrics {
  at::Tensor loss;       // mean nats per token over the global batch
  at::Tensor grad_norm;  // global L2 norm before clipping, unscaled
};

// One optimizer step, as a sentence: forward, backward, reduce, clip, update.
//
// What differs between runs (backend, precision, parallelism, clipping) is
// resolved when the parts are made; the host never waits for the device.
//
// A loss or gradient that is not finite changes nothing. With a loss scaler,
// under a finite loss, the scale backs off and training goes on. Without one,
// or where no smaller scale would help (the loss itself is not finite, or the
// scale is at its floor), every later update is skipped too, until the host
// looks at first_bad_step().
class TrainStep {
 public:
  struct Parts {
    const StepPlan* plan = nullptr;
    ParameterStore* parameters = nullptr;
    AdamW* optimizer = nullptr;
    ProcessGroup* group = nullptr;
    LossScaler* scaler = nullptr;  // null unless the policy scales the loss
    std::optional<double> clip_norm;
    // Gradients are all-reduced in slices of this many bytes.
    int64_t bucket_bytes = 0;
    PhaseObserver* phases = nullptr;
  };
  explicit TrainStep(const Parts& parts);

  // The number of the first step that Run() will do, for first_bad_step(). 0
  // without this call.
  void SetNextStep(int64_t step);

  // Prepare(), then Launch().
  absl::Status Run(const Batch& batch, double lr);

  // Writes what a step depends on into device memory that never moves: the
  // batch, the weight of its loss, the learning rate.
  absl::Status Prepare(const Batch& batch, double lr);
  // The step itself. Reads no value of the host that changes from step to step.
  absl::Status Launch();

  // The loss of a batch in metrics().loss, without gradients.
  absl::Status Forward(const Batch& batch);
  // Loss and gradients of this rank's share, not reduced across ranks.
  absl::Status ForwardBackward(const Batch& batch);
  // Loss and gradients of the global batch: a step up to its update.
  absl::Status ComputeGradients(const Batch& batch);

  const StepMetrics& metrics() const { return metrics_; }
  // The buffer of activations; undefined unless the plan has one.
  const at::Tensor& arena() const { return arena_; }
  // Bytes of activations held when the first forward pass of training ended;
  // every other holds as many. 0 before it.
  int64_t kept_bytes() const { return kept_bytes_; }

  // The first step that ended updates as above, if there was one since
  // SetNextStep(); waits for the device.
  std::optional<int64_t> first_bad_step() const;

 private:
  void CopyBatch(const Batch& batch);
  // Makes a micro-batch the input of `executor`.
  void SetInputs(int64_t micro_batch, Executor& executor) const;
  void RunForward();
  void RunForwardBackward();
  absl::Status Reduce();
  absl::Status Clip();
  absl::Status Update();

  const Parts parts_;
  StepMetrics metrics_;
  std::unique_ptr<NonFiniteLatch> latch_;
  // Whether this step must change nothing (bool [1]), given whether its
  // gradient is not finite, from that and the loss: the scaler's rule or the
  // latch's.
  std::function<at::Tensor(const at::Tensor& nonfinite)> skip_;
  // Device scalars: 1 / valid targets; the loss scale and its inverse (the
  // latter undefined for 1); what backward starts from; the rate.
  at::Tensor loss_weight_, loss_scale_, inverse_loss_scale_, seed_gradient_,
      lr_;
  // Of Clip(), for Update().
  at::Tensor gradient_scale_, nonfinite_;
  at::Tensor ids_mbs_, targets_mbs_;  // the batch, on the device
  at::Tensor arena_;
  Executor train_;
  std::unique_ptr<Executor> evaluate_;  // made when first needed
  int64_t kept_bytes_ = 0;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAIN_STEP_H_
