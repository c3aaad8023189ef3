#ifndef TRAINERS_RUN_DEVICE_BATCH_H_
#define TRAINERS_RUN_DEVICE_BATCH_H_

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "framework/program/executor.h"
#include "trainers/plan/step_plan.h"
#include "trainers/run/batch.h"

namespace tessera {

// The batch that the lists of a plan read: device memory at fixed addresses,
// as CUDA graphs need it.
class DeviceBatch {
 public:
  // `plan` outlives the batch.
  DeviceBatch(const StepPlan& plan, at::Device device);

  // Enqueues copies, from page-locked memory without waiting.
  void Copy(const Batch& batch);
  // Sets the micro-batches as the inputs of an executor of a list of the plan.
  void SetInputs(Executor& executor) const;
  // Sets micro-batch `micro_batch` as the inputs of the list's micro-batch
  // `as`.
  void SetInput(Executor& executor, int micro_batch, int as) const;

 private:
  const StepPlan& plan_;
  at::Tensor ids_mbs_, targets_mbs_;
  at::Tensor positions_mbs_, documents_m2bs_;  // undefined without documents
};

}  // namespace tessera

#endif  // TRAINERS_RUN_DEVICE_BATCH_H_
