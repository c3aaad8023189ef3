#include "trainers/run/batch_prefetcher.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"

namespace tessera {
namespace {

// Copies `from`, in page-locked memory or undefined, on the current stream.
void CopyTo(c10::Device device, const at::Tensor& from, at::Tensor& to) {
  if (!from.defined()) return;
  if (!to.defined()) to = at::empty_like(from, at::device(device));
  to.copy_(from, /*non_blocking=*/true);
}

}  // namespace

BatchPrefetcher::BatchPrefetcher(const BatchLoader* loader, c10::Device device)
    : loader_(loader), device_(device) {
  if (device.is_cpu()) return;
  stream_ = StreamFromPool(device);
  for (std::optional<Slot>& slot : slots_) slot.emplace(device);
}

absl::StatusOr<Batch> BatchPrefetcher::Next(int64_t first_sample) {
  if (sample_ != first_sample) Begin(first_sample);
  thread_.waitWorkComplete();
  absl::StatusOr<Batch> batch = std::move(loaded_);
  RETURN_IF_ERROR(StatusFromTorch([&] {
    if (stream_.has_value()) {
      const c10::Stream current = CurrentStream(device_);
      if (batch.ok()) slots_[filling_]->filled.block(current);
      filling_ = 1 - filling_;
      slots_[filling_]->read.record(current);
    }
    Begin(first_sample + loader_->global_batch());
  }));
  return batch;
}

void BatchPrefetcher::Begin(int64_t first_sample) {
  thread_.waitWorkComplete();
  sample_ = first_sample;
  Slot* const slot = stream_.has_value() ? &*slots_[filling_] : nullptr;
  thread_.run(
      [this, first_sample, slot] { loaded_ = Load(first_sample, slot); });
}

absl::StatusOr<Batch> BatchPrefetcher::Load(int64_t first_sample,
                                            Slot* slot) const {
  ASSIGN_OR_RETURN(Batch batch, loader_->Load(first_sample));
  if (slot == nullptr) return batch;
  RETURN_IF_ERROR(StatusFromTorch([&] {
    const c10::StreamGuard guard(*stream_);
    slot->read.block(*stream_);
    CopyTo(device_, batch.ids_mbs, slot->batch.ids_mbs);
    CopyTo(device_, batch.targets_mbs, slot->batch.targets_mbs);
    CopyTo(device_, batch.positions_mbs, slot->batch.positions_mbs);
    slot->filled.record(*stream_);
  }));
  slot->batch.valid_targets = batch.valid_targets;
  return slot->batch;
}

}  // namespace tessera
