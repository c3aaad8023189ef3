#include "trainers/run/gather_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// Gathers piece by piece.
class Gathering {
 public:
  explicit Gathering(const TrainingState& state)
      : sharding_(state.parameters->sharding()),
        group_(*state.group),
        // No step is under way, so nothing of use is in the gradients.
        scratch_(state.parameters->grad().detach().view(at::kByte)) {}

  // The section that begins at `first` in a whole buffer and has `size`
  // elements. `held` is this rank's buffer, `to` a whole one or undefined.
  absl::Status Section(const at::Tensor& held, int64_t first, int64_t size,
                       const at::Tensor& to) const {
    constexpr int64_t kPieceBytes = int64_t{16} << 20;
    const int64_t each = size / sharding_.shards;
    const at::Tensor own = held.narrow(0, first / sharding_.shards, each);
    const int64_t most =
        std::min(kPieceBytes, static_cast<int64_t>(scratch_.nbytes())) /
        (sharding_.shards * own.element_size());
    for (int64_t begin = 0; begin < each; begin += most) {
      const int64_t count = std::min(most, each - begin);
      const at::Tensor pieces =
          scratch_.narrow(0, 0, sharding_.shards * count * own.element_size())
              .view(own.scalar_type());
      RETURN_IF_ERROR(group_.AllGather(own.narrow(0, begin, count), pieces));
      if (!to.defined()) continue;
      for (int shard = 0; shard < sharding_.shards; ++shard) {
        to.narrow(0, first + each * shard + begin, count)
            .copy_(pieces.narrow(0, count * shard, count),
                   /*non_blocking=*/true);
      }
    }
    return absl::OkStatus();
  }

 private:
  const Sharding& sharding_;
  ProcessGroup& group_;
  const at::Tensor scratch_;
};

// What this rank has whole.
void CopyOwn(const TrainingState& state, StateBuffers* to) {
  const WeightBuffers& from = state.parameters->weights();
  if (from.master.defined()) to->weights.master.copy_(from.master, true);
  if (!from.high.defined()) return;
  to->weights.high.copy_(from.high, /*non_blocking=*/true);
  // The halves of frozen weights are at the end.
  const int64_t frozen =
      from.high.numel() - state.parameters->trainable_halves();
  const auto end_of = [frozen](const at::Tensor& buffer) {
    return buffer.narrow(0, buffer.numel() - frozen, frozen);
  };
  end_of(to->weights.low).copy_(end_of(from.low), /*non_blocking=*/true);
}

}  // namespace

StateBuffers WholeBuffers(const TrainingState& state) {
  const auto whole = [](const at::Tensor& held, int64_t numel) {
    return at::empty({numel}, at::device(at::kMeta).dtype(held.scalar_type()));
  };
  StateBuffers buffers = BuffersOf(state);
  at::Tensor& low = buffers.weights.low;
  if (low.defined()) low = whole(low, buffers.weights.high.numel());
  const int64_t extent = state.parameters->trainable_extent();
  buffers.exp_avg = whole(buffers.exp_avg, extent);
  buffers.exp_avg_sq = whole(buffers.exp_avg_sq, extent);
  return buffers;
}

absl::Status GatherState(const TrainingState& state, StateBuffers* to) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    if (to != nullptr) CopyOwn(state, to);
    const StateBuffers wanted = to == nullptr ? StateBuffers() : *to;
    const StateBuffers held = BuffersOf(state);
    const Gathering gathering(state);
    for (const ParameterSection& section : state.parameters->sections()) {
      const int64_t size = section.end - section.begin;
      RETURN_IF_ERROR(
          gathering.Section(held.exp_avg, section.begin, size, wanted.exp_avg));
      RETURN_IF_ERROR(gathering.Section(held.exp_avg_sq, section.begin, size,
                                        wanted.exp_avg_sq));
      if (!section.weights.split) continue;
      RETURN_IF_ERROR(gathering.Section(
          held.weights.low, section.weights.offset, size, wanted.weights.low));
    }
    return absl::OkStatus();
  });
}

}  // namespace tessera
