#include "trainers/run/state_copy.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"
#include "framework/cuda/device.h"
#include "framework/cuda/page_locked.h"
#include "framework/observe/format.h"
#include "trainers/run/gather_state.h"

namespace tessera {
namespace {

c10::Device DeviceOf(const StateBuffers& state) {
  return state.exp_avg.device();
}

absl::Status CheckFits(int64_t bytes, int64_t free) {
  if (bytes <= free - free / 10) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "a copy of weights and moments takes %.1f MiB of host memory, and %.1f "
      "MiB are free",
      static_cast<double>(bytes) / kMebibyte,
      static_cast<double>(free) / kMebibyte));
}

}  // namespace

StateCopy::StateCopy(const TrainingState& state)
    : source_(state), state_(BuffersOf(state)) {
  const c10::Device device = DeviceOf(state_);
  if (!device.is_cuda()) return;
  stream_ = StreamFromPool(device);
  copied_.emplace(device.type());
  for (std::optional<c10::Event>* timed : {&wait_begin_, &wait_end_}) {
    timed->emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
}

StateCopy::~StateCopy() { Wait().IgnoreError(); }

absl::StatusOr<std::unique_ptr<StateCopy>> StateCopy::Allocate(
    const TrainingState& state, const std::vector<TensorFile>& files,
    int64_t free_bytes, const std::atomic<bool>& stop) {
  std::unique_ptr<StateCopy> copy;
  const absl::Status status = StatusFromTorchOr([&]() -> absl::Status {
    const c10::Device device = state.parameters->options().device;
    const c10::DeviceGuard guard(device);
    copy = absl::WrapUnique(new StateCopy(state));
    const StateBuffers& like = copy->state_;
    StateBuffers& to = copy->copy_;
    to.kept = KeptFor(state, files);
    struct Wanted {
      int64_t numel;
      const at::Tensor& like;
      at::Tensor* to;
    };
    const StateBuffers::Kept& kept = to.kept;
    const Wanted all[] = {
        {kept.master.numel(), like.weights.master, &to.weights.master},
        {kept.halves.numel(), like.weights.high, &to.weights.high},
        {kept.halves.numel(), like.weights.low, &to.weights.low},
        {kept.exp_avg.numel(), like.exp_avg, &to.exp_avg},
        {kept.exp_avg_sq.numel(), like.exp_avg_sq, &to.exp_avg_sq},
        {kept.ema.numel(), like.ema, &to.ema}};
    int64_t bytes = 0;
    for (const Wanted& wanted : all) {
      if (wanted.numel > 0) bytes += wanted.numel * wanted.like.element_size();
    }
    RETURN_IF_ERROR(CheckFits(bytes, free_bytes));
    for (const Wanted& wanted : all) {
      if (wanted.numel == 0) continue;
      ASSIGN_OR_RETURN(*wanted.to,
                       LargePageLocked(wanted.numel, wanted.like.scalar_type(),
                                       device, stop));
    }
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(status);
  return copy;
}

absl::Status StateCopy::Begin() {
  stream_waits_ = false;
  if (source_.divided()) {
    // On the current stream, because the next step uses the gradients, through
    // which it gathers.
    RETURN_IF_ERROR(GatherState(source_, copy_));
    return StatusFromTorch([&] {
      if (on_gpu()) copied_->record(CurrentStream(DeviceOf(state_)));
    });
  }
  return StatusFromTorch([&] {
    std::optional<c10::StreamGuard> on;
    if (on_gpu()) {
      MakeWait(*stream_, CurrentStream(DeviceOf(state_)));
      on.emplace(*stream_);
    }
    CopyWhole(source_, copy_);
    if (on_gpu()) copied_->record(*stream_);
  });
}

void StateCopy::MakeCurrentStreamWait() {
  if (!on_gpu()) return;
  const c10::Stream current = CurrentStream(DeviceOf(state_));
  wait_begin_->record(current);
  copied_->block(current);
  wait_end_->record(current);
  stream_waits_ = true;
}

absl::Status StateCopy::Wait() const {
  if (!on_gpu()) return absl::OkStatus();
  return StatusFromTorch([&] {
    const c10::DeviceGuard guard(DeviceOf(state_));
    copied_->synchronize();
  });
}

absl::Duration StateCopy::StreamWaited() const {
  double ms = 0;
  const absl::Status status = StatusFromTorch([&] {
    if (stream_waits_ && wait_end_->query())
      ms = wait_begin_->elapsedTime(*wait_end_);
  });
  // An error is the GPU's, which the step reports.
  return status.ok() ? absl::Milliseconds(ms) : absl::ZeroDuration();
}

}  // namespace tessera
