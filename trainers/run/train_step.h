#ifndef TRAINERS_RUN_TRAIN_STEP_H_
#define TRAINERS_RUN_TRAIN_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "framework/cuda/recorded_work.h"
#include "framework/program/executor.h"
#include "trainers/plan/step_plan.h"
#include "trainers/run/batch.h"
#include "trainers/run/device_batch.h"
#include "trainers/run/step_tasks.h"

namespace tessera {

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
  explicit TrainStep(const StepParts& parts);

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

  // Flush(), then exchanges the weights and their average (Ema), which the
  // optimizer must have. Forward() is then that of the average. Call it again
  // before anything but Forward(). Collective over the ranks that divide state.
  absl::Status ExchangeEma();

  // Calls `wait` once, before work that changes weights or moments is enqueued
  // on the current stream, so that `wait` can make the stream wait. Without a
  // graph that is in the middle of a step. A graph waits as a whole, except the
  // first one after Flush() if updates are deferred: that one changes nothing.
  // Replaces an earlier `wait`.
  void BeforeNextUpdate(std::function<void()> wait) {
    tasks_.BeforeNextUpdate(std::move(wait));
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

  const StepMetrics& metrics() const { return tasks_.metrics(); }
  // The buffer of activations; undefined unless the plan has one.
  const at::Tensor& arena() const { return arena_; }
  // Bytes of activations held at the end of the first training forward pass,
  // the same in every step; 0 before that.
  int64_t kept_bytes() const { return train_.kept_bytes(); }

  // The first step since SetNextStep() after which updates are skipped as
  // described above, if any. Waits for the device.
  std::optional<int64_t> first_bad_step() const {
    return tasks_.first_bad_step();
  }

 private:
  // A list of the plan other than that of the step.
  struct OtherList {
    const Schedule& list;
    const Lifetimes& lifetimes;
    PhaseObserver* phases = nullptr;
    std::unique_ptr<Executor> executor = nullptr;  // made when it first runs
    RecordedWork work = {};
  };
  absl::Status RunOther(const Batch& batch, OtherList* other);
  void CopyBatch(const Batch& batch);
  void SetInputs(const Schedule& list, Executor& executor) const;
  void BeginRepetition(Executor& executor, int micro_batch) override {
    batch_.SetInput(executor, micro_batch, /*as=*/1);
  }
  void Run(const Task& task, absl::Span<const at::Tensor> operands,
           absl::Span<const at::Tensor> results) override {
    tasks_.Run(task, operands, results);
  }

  const StepParts parts_;
  int64_t next_step_ = 0;
  StepTasks tasks_;
  bool pending_ = false;  // the last step's update
  DeviceBatch batch_;
  at::Tensor arena_;
  Executor train_;
  RecordedWork step_work_;
  OtherList gradients_, evaluation_;
};

}  // namespace tessera

#endif  // TRAINERS_RUN_TRAIN_STEP_H_
