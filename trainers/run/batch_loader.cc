#include "trainers/run/batch_loader.h"

#include <ATen/ATen.h>

#include <array>

#include "absl/types/span.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/page_locked.h"

namespace tessera {
namespace {

absl::Span<int64_t> Elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return absl::MakeSpan(tensor.data_ptr<int64_t>(), tensor.numel());
}

}  // namespace

absl::StatusOr<Batch> BatchLoader::Load(int64_t first_sample,
                                        int64_t end_sample) const {
  BatchRequest request = request_;
  request.first_sample = first_sample;
  request.end_sample = end_sample;
  Batch batch;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const auto empty_mbs = [&] {
      const std::array<int64_t, 3> shape = {micro_batches_,
                                            request.share() / micro_batches_,
                                            source_->context_length()};
      return page_locked_ ? PageLocked(shape, at::kLong)
                          : at::empty(shape, at::kLong);
    };
    batch.ids_mbs = empty_mbs();
    batch.targets_mbs = empty_mbs();
    if (source_->separate_documents()) batch.positions_mbs = empty_mbs();
  }));
  ASSIGN_OR_RETURN(batch.valid_targets,
                   source_->Fill(request, Elements(batch.ids_mbs),
                                 Elements(batch.targets_mbs),
                                 Elements(batch.positions_mbs)));
  return batch;
}

}  // namespace tessera
