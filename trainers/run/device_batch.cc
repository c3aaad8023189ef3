#include "trainers/run/device_batch.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "attention_backends/document_bounds.h"

namespace tessera {

DeviceBatch::DeviceBatch(const StepPlan& plan, at::Device device)
    : plan_(plan) {
  const LossProgram& loss = plan.loss;
  std::vector<int64_t> shape_mbs = loss.program.info(loss.ids).type.shape;
  shape_mbs.insert(shape_mbs.begin(), plan.micro_batches);
  const auto options = at::dtype(at::kLong).device(device);
  ids_mbs_ = at::zeros(shape_mbs, options);
  targets_mbs_ = at::zeros(shape_mbs, options);
  if (!loss.documents.has_value()) return;
  positions_mbs_ = at::zeros(shape_mbs, options);
  documents_m2bs_ = at::zeros({shape_mbs[0], 2, shape_mbs[1], shape_mbs[2]},
                              options.dtype(at::kInt));
}

void DeviceBatch::Copy(const Batch& batch) {
  ids_mbs_.copy_(batch.ids_mbs, /*non_blocking=*/true);
  targets_mbs_.copy_(batch.targets_mbs, /*non_blocking=*/true);
  if (!positions_mbs_.defined()) return;
  positions_mbs_.copy_(batch.positions_mbs, /*non_blocking=*/true);
  DocumentBounds(positions_mbs_, documents_m2bs_);
}

void DeviceBatch::SetInputs(Executor& executor) const {
  const int listed = plan_.train.listed_micro_batches();
  for (int m = 0; m < listed; ++m) {
    const bool last = m + 1 == listed;
    SetInput(executor, last ? plan_.micro_batches - 1 : m, m);
  }
}

void DeviceBatch::SetInput(Executor& executor, int micro_batch, int as) const {
  // Training and evaluation have the same values.
  const LossProgram& loss = plan_.loss;
  const auto set = [&](Value value, const at::Tensor& micro_batches) {
    executor.SetInput(plan_.train.ValueOf(value, as),
                      micro_batches[micro_batch]);
  };
  set(loss.ids, ids_mbs_);
  set(loss.targets, targets_mbs_);
  if (!loss.documents.has_value()) return;
  set(*loss.positions, positions_mbs_);
  set(*loss.documents, documents_m2bs_);
}

}  // namespace tessera
