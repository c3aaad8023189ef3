#include "trainers/run/gather_state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "framework/base/check.h"
#include "framework/base/status_macros.h"
#include "framework/base/torch_status.h"

namespace tessera {
namespace {

// How much each gathering takes from all ranks together.
constexpr int64_t kPieceBytes = int64_t{16} << 20;

// Through which the pieces pass: the gradients, because no step is under way
// and nothing of use is in them, unless this rank has too little of those.
at::Tensor Scratch(const at::Tensor& gradients) {
  const at::Tensor bytes = gradients.detach().view(at::kByte);
  return bytes.numel() >= kPieceBytes
             ? bytes
             : at::empty({kPieceBytes}, bytes.options());
}

// Gathers piece by piece.
class Gathering {
 public:
  explicit Gathering(const TrainingState& state)
      : shards_(state.parameters->sharding().shards),
        group_(*state.shards),
        scratch_(Scratch(state.parameters->grad())) {}

  // The section that begins at `first` in a whole buffer and has `size`
  // elements. `held` is this rank's buffer, `to` a whole one or undefined.
  absl::Status Section(const at::Tensor& held, const Division& division,
                       int64_t first, int64_t size,
                       const at::Tensor& to) const {
    const int64_t each = size / shards_;
    const at::Tensor own = held.narrow(0, division.HeldBegin(first), each);
    const int64_t most = kPieceBytes / (shards_ * own.element_size());
    for (int64_t begin = 0; begin < each; begin += most) {
      const int64_t count = std::min(most, each - begin);
      const at::Tensor pieces =
          scratch_.narrow(0, 0, shards_ * count * own.element_size())
              .view(own.scalar_type());
      RETURN_IF_ERROR(group_.AllGather(own.narrow(0, begin, count), pieces));
      if (!to.defined()) continue;
      for (int shard = 0; shard < shards_; ++shard) {
        to.narrow(0, first + each * shard + begin, count)
            .copy_(pieces.narrow(0, count * shard, count),
                   /*non_blocking=*/true);
      }
    }
    return absl::OkStatus();
  }

 private:
  const int shards_;
  Communicator& group_;
  const at::Tensor scratch_;
};

// What this rank has whole.
void CopyOwn(const at::Tensor& from, const Division& division,
             const at::Tensor& to) {
  if (!from.defined()) return;
  if (division.shards == 1) {
    to.copy_(from, /*non_blocking=*/true);
    return;
  }
  to.narrow(0, 0, division.replicated)
      .copy_(from.narrow(0, 0, division.replicated), /*non_blocking=*/true);
  const int64_t frozen = to.numel() - division.trained;
  to.narrow(0, division.trained, frozen)
      .copy_(from.narrow(0, from.numel() - frozen, frozen),
             /*non_blocking=*/true);
}

}  // namespace

StateBuffers WholeBuffers(const TrainingState& state) {
  const ParameterStore::Divisions& divisions = state.parameters->divisions();
  StateBuffers buffers = BuffersOf(state);
  const auto make_whole = [](const Division& division, at::Tensor* held) {
    if (!held->defined() || division.shards == 1) return;
    *held = at::empty({held->numel() + division.elsewhere()},
                      at::device(at::kMeta).dtype(held->scalar_type()));
  };
  make_whole(divisions.master, &buffers.weights.master);
  make_whole(divisions.high, &buffers.weights.high);
  make_whole(divisions.low, &buffers.weights.low);
  make_whole(divisions.moments, &buffers.exp_avg);
  make_whole(divisions.moments, &buffers.exp_avg_sq);
  return buffers;
}

absl::Status GatherState(const TrainingState& state, StateBuffers* to) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    const ParameterStore::Divisions& divisions = state.parameters->divisions();
    const StateBuffers wanted = to == nullptr ? StateBuffers() : *to;
    const StateBuffers held = BuffersOf(state);
    if (to != nullptr) {
      CopyOwn(held.weights.master, divisions.master, wanted.weights.master);
      CopyOwn(held.weights.high, divisions.high, wanted.weights.high);
      CopyOwn(held.weights.low, divisions.low, wanted.weights.low);
    }
    const Gathering gathering(state);
    for (const ParameterSection& section : state.parameters->sections()) {
      const auto gather = [&](const at::Tensor& from, const Division& division,
                              int64_t first, const at::Tensor& whole) {
        return gathering.Section(from, division, first, section.size(), whole);
      };
      RETURN_IF_ERROR(gather(held.exp_avg, divisions.moments, section.begin,
                             wanted.exp_avg));
      RETURN_IF_ERROR(gather(held.exp_avg_sq, divisions.moments, section.begin,
                             wanted.exp_avg_sq));
      const int64_t first = section.weights.offset;
      if (section.weights.split) {
        RETURN_IF_ERROR(
            gather(held.weights.low, divisions.low, first, wanted.weights.low));
      }
      if (!section.divided) continue;
      RETURN_IF_ERROR(section.weights.split
                          ? gather(held.weights.high, divisions.high, first,
                                   wanted.weights.high)
                          : gather(held.weights.master, divisions.master, first,
                                   wanted.weights.master));
    }
    return absl::OkStatus();
  });
}

}  // namespace tessera
