#include "trainers/run/gather_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

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

// Copies to `to` what it keeps of elements [begin, end) of a whole buffer.
// `from` has them, `shift` elements before their place in that buffer.
void Copy(const at::Tensor& from, int64_t shift, const KeptRanges& kept,
          int64_t begin, int64_t end, const at::Tensor& to) {
  for (const KeptRanges::Part& part : kept.In(begin, end)) {
    to.narrow(0, part.place, part.numel)
        .copy_(from.narrow(0, part.begin - shift, part.numel),
               /*non_blocking=*/true);
  }
}

// Gathers piece by piece.
class Gathering {
 public:
  explicit Gathering(const TrainingState& state)
      : shards_(state.parameters->sharding().shards),
        group_(*state.shards),
        scratch_(Scratch(state.parameters->grad())) {}

  // The section that begins at `first` in a whole buffer and has `size`
  // elements. `held` is this rank's buffer; `to` has `kept` of a whole one, or
  // is undefined.
  absl::Status Section(const at::Tensor& held, const Division& division,
                       int64_t first, int64_t size, const KeptRanges& kept,
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
        const int64_t at = first + each * shard + begin;
        Copy(pieces, at - count * shard, kept, at, at + count, to);
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
             const KeptRanges& kept, const at::Tensor& to) {
  if (!to.defined()) return;
  const int64_t whole = from.numel() + division.elsewhere();
  if (division.shards == 1) {
    Copy(from, 0, kept, 0, whole, to);
    return;
  }
  Copy(from, 0, kept, 0, division.replicated, to);
  // Frozen weights come after what ranks divide.
  Copy(from, division.elsewhere(), kept, division.trained, whole, to);
}

}  // namespace

void CopyWhole(const TrainingState& state, const StateBuffers& to) {
  const at::NoGradGuard no_grad;
  const ParameterStore::Divisions& divisions = state.parameters->divisions();
  const StateBuffers held = BuffersOf(state);
  const StateBuffers::Kept& kept = to.kept;
  const WeightBuffers &from = held.weights, &weights = to.weights;
  CopyOwn(from.master, divisions.master, kept.master, weights.master);
  CopyOwn(from.high, divisions.high, kept.halves, weights.high);
  CopyOwn(from.low, divisions.low, kept.halves, weights.low);
  CopyOwn(held.exp_avg, divisions.moments, kept.exp_avg, to.exp_avg);
  CopyOwn(held.exp_avg_sq, divisions.second_moments, kept.exp_avg_sq,
          to.exp_avg_sq);
  CopyOwn(held.ema, divisions.moments, kept.ema, to.ema);
}

absl::Status GatherState(const TrainingState& state, const StateBuffers& to) {
  return StatusFromTorchOr([&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    const ParameterStore::Divisions& divisions = state.parameters->divisions();
    const StateBuffers held = BuffersOf(state);
    CopyWhole(state, to);
    const Gathering gathering(state);
    for (const ParameterSection& section : state.parameters->sections()) {
      const auto gather = [&](const at::Tensor& from, const Division& division,
                              int64_t first, const KeptRanges& kept,
                              const at::Tensor& copy) {
        return gathering.Section(from, division, first, section.size(), kept,
                                 copy);
      };
      RETURN_IF_ERROR(gathering.Section(
          held.exp_avg_sq, divisions.second_moments, section.second_begin,
          section.second_end - section.second_begin, to.kept.exp_avg_sq,
          to.exp_avg_sq));
      RETURN_IF_ERROR(gather(held.exp_avg, divisions.moments, section.begin,
                             to.kept.exp_avg, to.exp_avg));
      if (held.ema.defined()) {
        RETURN_IF_ERROR(gather(held.ema, divisions.moments, section.begin,
                               to.kept.ema, to.ema));
      }
      const int64_t first = section.weights.offset;
      if (section.weights.split) {
        RETURN_IF_ERROR(gather(held.weights.low, divisions.low, first,
                               to.kept.halves, to.weights.low));
      }
      if (!section.divided) continue;
      RETURN_IF_ERROR(section.weights.split
                          ? gather(held.weights.high, divisions.high, first,
                                   to.kept.halves, to.weights.high)
                          : gather(held.weights.master, divisions.master, first,
                                   to.kept.master, to.weights.master));
    }
    return absl::OkStatus();
  });
}

}  // namespace tessera
