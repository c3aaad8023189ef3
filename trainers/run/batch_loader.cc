#include "trainers/run/batch_loader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// Page-locked for a GPU, so that the copy runs while the host goes on; the
// allocator keeps the block until it is done.
at::Tensor HostTensor(const std::vector<int64_t>& values, const Batch& batch,
                      bool page_locked) {
  at::Tensor host = at::empty({batch.batch, batch.context},
                              at::dtype(at::kLong).pinned_memory(page_locked));
  std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  return host;
}

}  // namespace

absl::StatusOr<StepBatch> BatchLoader::Load(int64_t first_sample,
                                            int64_t end_sample) const {
  StepBatch step;
  Batch batch;
  BatchRequest request = request_;
  request.first_sample = first_sample;
  request.end_sample = end_sample;
  for (int m = 0; m < request.micro_batches; ++m) {
    request.micro_batch = m;
    RETURN_IF_ERROR(source_->Fill(request, &batch));
    step.valid_targets = batch.global_valid_targets;
    RETURN_IF_ERROR(StatusFromTorch([&] {
      step.micro_batches.push_back(
          {HostTensor(batch.ids, batch, page_locked_),
           HostTensor(batch.targets, batch, page_locked_)});
    }));
  }
  return step;
}

}  // namespace tessera
