#ifndef TRAINERS_TRAIN_STEP_H_
#define TRAINERS_TRAIN_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/dist/process_group.h"
#include "framework/optim/adamw.h"
#include "framework/optim/non_finite_latch.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "models/transformer_lm.h"

namespace tessera {

// One rank's part of one forward and backward pass, on the device.
struct MicroBatch {
  at::Tensor ids_bs;      // int64
  at::Tensor targets_bs;  // int64, kIgnoredTarget where padded
};

struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  // Targets that count, over every rank and micro-batch: what the sum of
  // losses is divided by.
  int64_t valid_targets = 0;
};

// Device scalars, so that reading them is the caller's choice. The next Run()
// overwrites them.
struct StepMetrics {
  at::Tensor loss;       // FP32: mean nats per token over the global batch
  at::Tensor grad_norm;  // FP32: global L2 norm before clipping, unscaled
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
    const TransformerLm* model = nullptr;
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

  // `next_step`: the number of the first step that Run() will do, for
  // first_bad_step(). 0 without this call.
  void StartAt(int64_t next_step);

  // `lr` is the schedule's value for the step.
  absl::Status Run(const StepBatch& batch, double lr);

  // The two halves that benches time alone. Forward() without gradients;
  // ForwardBackward() leaves them in the store, reduced over no one.
  absl::Status Forward(const StepBatch& batch);
  absl::Status ForwardBackward(const StepBatch& batch);
  // A step up to its update: gradients and loss of the global batch.
  absl::Status Gradients(const StepBatch& batch);

  const StepMetrics& metrics() const { return metrics_; }

  // The first step that ended updates as above, if there was one since
  // StartAt(); waits for the device.
  std::optional<int64_t> first_bad_step() const;

 private:
  void ForwardBackwardOrThrow(const StepBatch& batch);
  // `first`: no gradient of this step has been written yet.
  void AccumulateMicroBatch(const MicroBatch& micro_batch, bool first);
  absl::Status Reduce();
  absl::Status ClipAndUpdate(double lr);

  const Parts parts_;
  StepMetrics metrics_;
  std::unique_ptr<NonFiniteLatch> latch_;
  // Whether this step must change nothing (bool [1]), given whether its
  // gradient is not finite, from that and the loss: the scaler's rule or the
  // latch's.
  std::function<at::Tensor(const at::Tensor& nonfinite)> skip_;
  // Device scalars, FP32: 1 / valid targets; the loss scale and its inverse
  // (the latter undefined for 1); what backward starts from; the rate.
  at::Tensor loss_weight_, loss_scale_, inverse_loss_scale_, seed_gradient_,
      lr_;
};

}  // namespace tessera

#endif  // TRAINERS_TRAIN_STEP_H_
