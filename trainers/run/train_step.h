#ifndef TRAINERS_RUN_TRAIN_STEP_H_
#define TRAINERS_RUN_TRAIN_STEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "framework/base/phase_observer.h"
#include "framework/cuda/cuda_graph.h"
#include "framework/dist/process_group.h"
#include "framework/optim/gradient_norm.h"
#include "framework/optim/non_finite_latch.h"
#include "framework/optim/optimizer.h"
#include "framework/params/parameter_store.h"
#include "framework/precision/loss_scaler.h"
#include "framework/program/executor.h"
#include "trainers/plan/step_plan.h"
#include "trainers/run/batch.h"

namespace tessera {

// Device scalars, so that the caller decides when to read them. The next step
// overwrites them. Their dtype is that of OpClass::kReduction.
struct StepMetrics {
  // Mean nats per token over the global batch: after Run() of the training
  // objective, with all of its terms; after Forward() of the cross entropy.
  at::Tensor loss;
  at::Tensor grad_norm;  // global L2 norm before clipping, unscaled
};

// One optimizer step: runs the list of StepPlan::train.
//
// Everything that differs between runs (backend, precision, parallelism,
// clipping) is resolved at construction. The host never waits for the device.
//
// A step with a loss or gradient that is not finite does not change any weight.
// With a loss scaler and a finite loss, the scale backs off and training
// continues. Without a scaler, or if no smaller scale would help (the loss
// itself is not finite, or the scale is at its minimum), all later updates are
// skipped, too, until the host checks first_bad_step().
class TrainStep : private TaskRunner {
 public:
  struct Parts {
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
  explicit TrainStep(const Parts& parts);

  // Sets the number of the first step that Run() does, for first_bad_step() and
  // the group's errors; 0 by default. Graphs are recorded anew: observers see
  // the phases inside if they were attached when that happens.
  void SetNextStep(int64_t step);

  // Gives up what was recorded; later steps are recorded anew.
  void DropGraphs();

  // Prepare(), then Launch().
  absl::Status Run(const Batch& batch, double lr);

  // Writes the inputs of a step into device memory at fixed addresses: the
  // batch, the weight of its loss, the learning rate. Counts the step.
  absl::Status Prepare(const Batch& batch, double lr);
  // Runs the step. Reads no host value that changes from step to step. With
  // StepPlan::graph it is recorded in the third step, after two rehearsals that
  // prepare all kernels, and launched as one from then on. Whatever is
  // rehearsed or recorded, in any order, shares the memory of the graphs.
  absl::Status Launch();

  // Updates the weights with the gradients of the last step, if the plan leaves
  // that to the next one (Schedule::starts_pending). Call it before reading
  // weights or moments; the functions below do.
  absl::Status Flush();

  // Calls `wait` once, before work that changes weights or moments is enqueued
  // on the current stream, so that `wait` can make the stream wait. Without a
  // graph that is in the middle of a step. A graph waits as a whole, except the
  // first one after Flush() if updates are deferred: that one changes nothing.
  // Replaces an earlier `wait`.
  void BeforeNextUpdate(std::function<void()> wait) {
    before_update_ = std::move(wait);
  }

  // Computes the cross entropy of a batch, metrics().loss, without gradients.
  // Recorded and launched like a step; then observers see no phases inside,
  // because they expect one graph, that of the step.
  absl::Status Forward(const Batch& batch);
  // Computes loss and gradients of this rank's share, not reduced across ranks
  // unless they divide gradients.
  // Recorded and launched like a step; no observer may be attached in the third
  // call, because observers expect one graph, that of the step.
  absl::Status ForwardBackward(const Batch& batch);
  // Computes loss and gradients of the global batch: a step without its update.
  absl::Status ComputeGradients(const Batch& batch);

  const StepMetrics& metrics() const { return metrics_; }
  // The buffer of activations; undefined unless the plan has one.
  const at::Tensor& arena() const { return arena_; }
  // Bytes of activations held at the end of the first training forward pass,
  // the same in every step; 0 before that.
  int64_t kept_bytes() const { return train_.kept_bytes(); }

  // The first step since SetNextStep() after which updates are skipped as
  // described above, if any. Waits for the device.
  std::optional<int64_t> first_bad_step() const;

 private:
  void CopyBatch(const Batch& batch);
  void Clip();
  // Does a task in which all ranks take part.
  void Communicate(const Task& task, absl::Span<const at::Tensor> operands,
                   absl::Span<const at::Tensor> results);
  // part = this rank's part of the sum of `whole` over all ranks.
  void SumOverRanks(const at::Tensor& whole, const at::Tensor& part);
  // This rank's part of a section of a flat buffer.
  at::Tensor OwnPart(const at::Tensor& section) const;
  // Calls what BeforeNextUpdate() was given.
  void BeforeUpdate();
  // Sets the listed micro-batches as the inputs of `executor`.
  void SetInputs(Executor& executor) const;
  // Sets micro-batch `micro_batch` as the inputs of the listed micro-batch
  // `as`.
  void SetInput(Executor& executor, int micro_batch, int as) const;
  // Work that is enqueued anew each time, or recorded and launched.
  struct Work {
    std::unique_ptr<CudaGraph> graph;  // null unless the plan wants one
    int64_t rehearsals = 0;
  };
  static absl::Status Do(Work& work, absl::FunctionRef<absl::Status()> issue);

  void BeginRepetition(Executor& executor, int micro_batch) override {
    SetInput(executor, micro_batch, /*as=*/1);
  }
  void Run(const Task& task, absl::Span<const at::Tensor> operands,
           absl::Span<const at::Tensor> results) override;

  const Parts parts_;
  int64_t next_step_ = 0;
  // "operation 2 of 5 (gradients)", for the tasks in which all ranks take part.
  std::map<const Task*, std::string> operations_;
  StepMetrics metrics_;
  std::unique_ptr<NonFiniteLatch> latch_;
  // Whether this step must not change anything (bool [1]), from whether its
  // gradient is not finite and from the loss. Implements the scaler's or the
  // latch's rule.
  std::function<at::Tensor(const at::Tensor& nonfinite)> skip_;
  // Device scalars: 1 / valid targets; the loss scale and its inverse
  // (undefined if the scale is 1); the seed of backward; the learning rate.
  at::Tensor loss_weight_, loss_scale_, inverse_loss_scale_, seed_gradient_,
      lr_;
  SumOfSquares squares_;
  bool pending_ = false;  // the last step's update
  // Whether the step that is being launched changes weights.
  bool updates_ = false;
  std::function<void()> before_update_;  // null: nothing to call
  // The batch, on the device; the last two are undefined without documents.
  at::Tensor ids_mbs_, targets_mbs_, positions_mbs_, documents_m2bs_;
  at::Tensor arena_;
  Executor train_;
  std::unique_ptr<Executor> gradients_, evaluate_;  // created on first use
  Work step_work_, evaluation_work_, gradient_work_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAIN_STEP_H_
